"""The interface of a task, and tasks with any loss of the outputs of a model and the targets.

Losses that users give to a task must be means over the targets, however micro-batches divide these. Metrics of a whole
split that are no mean over batches are a function of sums over its targets.
"""

import contextlib
import copy
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, map_tensors, widened
from hydrant.config import DEFAULT_METRIC
from hydrant.errors import ConfigError, unknown_name
from hydrant.files.plain_values import Positive


@contextlib.contextmanager
def eval_mode(module: nn.Module) -> Generator[None]:
    """Put a module into evaluation mode, and afterwards each of its parts into the mode that it had.

    So a part that its author put into `eval()` stays there.
    """
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes.items():
            if part.training != was_training:
                part.train(was_training)  # its own method may do more, such as take merged weights apart
        for part, was_training in modes.items():
            part.training = was_training


@contextlib.contextmanager
def kept_buffers(module: nn.Module) -> Generator[None]:
    """Give a module back the buffers that it had, with their values. Lazy ones take those that they are made with."""
    restore = copied_buffers(module)
    try:
        yield
    finally:
        restore()


def copied_buffers(module: nn.Module) -> Callable[[], None]:
    """Copy the buffers of a module; return a function that gives them back to it, as `kept_buffers` does."""

    held_by_parts = [part._buffers for part in module.modules()]  # pyrefly: ignore[protected-access]  # also the absent ones
    places = [(held, dict(held)) for held in held_by_parts]
    buffers = [b for b in module.buffers() if not (nn.parameter.is_lazy(b) or _is_expanded(b))]
    values = [(buffer, buffer.clone()) for buffer in buffers]

    @torch.no_grad()
    def restore() -> None:
        for held, before in places:  # a forward pass may add a buffer, or assign a new tensor to one
            held.clear()
            held.update(before)
        for buffer, value in values:
            buffer.copy_(value)

    return restore


def _is_expanded(buffer: Tensor) -> bool:
    """Return whether several elements share their memory: then torch refuses to write into the buffer."""
    is_strided = buffer.layout is torch.strided
    return is_strided and any(s == 0 and n > 1 for s, n in zip(buffer.stride(), buffer.shape, strict=True))


def tensor_targets(targets: object, task: str) -> Tensor:
    """Return the targets of a batch, checked to be a tensor. `task` is the option that needs one.

    Raises:
        ConfigError: they are something else, such as the empty list of data without targets.
    """
    if not isinstance(targets, Tensor):
        message = f"gives a {type(targets).__name__} as the targets of a batch; task={task} needs a tensor"
        remedy = "give numbers, such as a class; of samples in dicts, name the field: data.target=<field>"
        raise ConfigError("data", message, remedy=remedy)
    return targets


class Task(nn.Module):
    """A model with its losses, as one module, which is compiled and wrapped for several ranks.

    Args:
        model: the module that checkpoints and exports contain; several models form an `nn.ModuleDict`. Access it as
            `self.model` each time, because evaluation may replace it by the averaged model.
        metrics: torchmetrics by name, updated with `(predictions, targets)` in evaluation, for metrics that are no
            mean over batches (F1, AUROC ...).
    """

    model: nn.Module
    metrics: nn.ModuleDict
    best_metric: ClassVar[str] = DEFAULT_METRIC
    """Decides the best checkpoint unless the config names another one."""
    loss_of_batch = False
    """True: the loss has terms of several samples, such as pairs, so `assess` gets the outputs of the whole batch."""
    turn: str | None = None
    """The optimizer that updates by this forward pass, where they take turns (`update_order`): only its losses are
    needed. None: all losses are, as in evaluation."""
    carried: Tensors = None
    """What `forward` carried at these places of the last update's batch; None in the first, and in evaluation."""
    measures_training = True  # False if nothing reads the measurements of training batches
    class_names: Sequence[str] | None = None  # of the data, if they have some
    ignore_index: int | None = None  # targets with this value do not count; None: all count

    def __init__(self, model: nn.Module, metrics: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.model = model
        self.metrics = nn.ModuleDict(metrics or {})

    @property
    def gathers_outputs(self) -> bool:
        """Whether the loss of a whole batch is that of gathered outputs; a `forward` of its own sees a micro-batch."""
        return self.loss_of_batch and type(self).forward is Task.forward

    def forward(self, batch: Batch) -> Outcome:
        """Return the losses and measurements of one batch."""
        return self.assess(self.outputs(batch), Batch((), batch.targets) if self.loss_of_batch else batch)

    def outputs(self, batch: Batch) -> Tensors:
        """Return what `assess` needs of the inputs, (B, ...) each. Default: what the model returns for them."""
        return self.model(batch.inputs)

    def assess(self, outputs: Tensors, batch: Batch) -> Outcome:
        """Return the losses and measurements of outputs.

        With `loss_of_batch`, outputs and targets are those of all micro-batches and ranks in training, in the order of
        the batch, and `batch` has no inputs.
        """
        raise NotImplementedError

    def receive_data(self, data: Any) -> None:
        """Read from a `Data` what the task needs, before the first batch. Default: the class names."""
        self.class_names = data.class_names

    def end_update(self, carried: Tensors) -> None:
        """Take the `Outcome.carried` of an update from all ranks and micro-batches, (global_batch_size, ...) each.

        For a state of the whole batch, such as a queue: buffers that this method writes are the same at any division.
        """

    def predict(self, inputs: Tensors) -> Mapping[str, Tensor]:
        """Return what the model predicts for the inputs of a batch, by name: (B, ...) each, for `hydrant predict`.

        Integers named `prediction` are classes, which tables show by name. `probabilities` (B, C) have a number for
        each class. `logits` are in no table. Default: the outputs of the model; if they are a tensor, as `prediction`.

        Raises:
            ConfigError: there are several models, or the outputs are neither a tensor nor a dict of tensors.
        """
        if isinstance(self.model, nn.ModuleDict):
            models = ", ".join(self.model)
            raise ConfigError("task", f"the method predict of {type(self).__name__} is needed for {models}")
        outputs = map_tensors(widened, self.model(inputs))
        named = outputs if isinstance(outputs, Mapping) else {"prediction": outputs}
        if wrong := [value for value in named.values() if not isinstance(value, Tensor)]:
            holder = f"a model whose outputs hold a {type(wrong[0]).__name__}"
            raise ConfigError("task", f"{holder} needs a task with a method predict")
        return cast("Mapping[str, Tensor]", named)

    @property
    def measures(self) -> bool:
        """Whether `forward` must return measurements. It may always do so."""
        return self.measures_training or not self.training

    def pictures(self) -> dict[str, Tensor]:
        """Return the pictures to log after each evaluation, by name: (3, H, W) or (1, H, W) in 0..1. Default: none."""
        return {}


Loss = Callable[[Any, Any], Any]
"""`(outputs, targets)` -> the mean over the samples, shape (), or several such means by name, which are added."""

_MEANS = ("mean", "batchmean")
_MODULES: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy: nn.BCELoss,
}


class MeanOfValid(nn.Module):
    """A loss of torch with an `ignore_index`: the mean over the targets that count, and 0 if there are none."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self._terms: Any = copy.copy(loss)
        self._terms.reduction = "none"  # of the copy
        self.ignore_index: int = self._terms.ignore_index

    def valid(self, targets: Tensor) -> Tensor | None:
        """Return which targets count, bool; None if the targets are probabilities, which all count."""
        return None if targets.is_floating_point() else targets != self.ignore_index

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        terms, valid = self._terms(outputs, targets), self.valid(targets)
        return terms.mean() if valid is None else terms.sum() / valid.sum().clamp(min=1)


def checked_loss(loss: Any) -> Loss:
    """Return a loss whose value for several batches is the mean of its values, weighted by their numbers of targets.

    Raises:
        ConfigError: one of its arguments makes it another mean.
    """
    function, named = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    is_known = function in _MODULES and not getattr(loss, "args", ())
    made: Any = _MODULES[function](**named) if is_known else loss  # torch's module instead of its function
    if not is_of_torch(made):
        return made  # the user's own function, which must be a mean
    arguments = made.keywords if isinstance(made, partial) else vars(made)
    reduction = arguments.get("reduction", "mean")
    if reduction not in _MEANS:
        message = f"{reduction} is no mean over the targets, so the result would depend on micro_batch_size"
        raise ConfigError("task.loss.reduction", message, remedy="give mean")
    if getattr(made, "ignore_index", None) is None:
        return made
    if getattr(made, "weight", None) is not None:
        message = "torch divides by the sum of a micro-batch's weights, so its size would matter"
        remedy = "write task=classification task.class_weights=[...] instead, which divides by the number of targets"
        raise ConfigError("task.loss.weight", message, remedy=remedy)
    return MeanOfValid(made)  # a module, as it has ignore_index


def is_of_torch(loss: object) -> bool:
    """Return whether torch computes a loss, perhaps for Hydrant. Most of those broadcast the shapes that they get."""
    made_by = loss.func if isinstance(loss, partial) else getattr(type(loss), "forward", loss)
    return str(getattr(made_by, "__module__", "")).startswith(("torch.nn.", __name__))


_OUT_OF_BOUNDS = re.compile(r"Target (-?\d+) is out of bounds")


@contextlib.contextmanager
def explain_unknown_class() -> Generator[None]:
    """Turn torch's error on the host about a class that the model does not have into one that names the keys.

    Raises:
        ConfigError: the targets hold such a class.
    """
    try:
        yield
    except IndexError as error:
        if not (match := _OUT_OF_BOUNDS.search(str(error))):
            raise
        index = int(match[1])
        outputs = f"{index + 1} outputs or more, by its own key or data.num_classes={index + 1}"
        needed = f"subtract 1 from labels that begin with 1, as classes count from 0; else give {outputs}"
        remedy = "give task.ignore_index, if such targets do not count" if index < 0 else needed
        message = f"has no output for the class {index} of a sample"
        raise ConfigError("model", message, remedy=remedy) from error


class MetricOfSums(nn.Module):
    """A metric that is the `value` of the sums over a split. `update` gets values, such as predictions, and targets."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: Tensor | None = None

    def update(self, values: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        sums = self.sums(values, targets).double()
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> Tensor:
        """Return the value over the batches of all ranks, shape (). All ranks call this together."""
        assert self._sums is not None
        sums = self._sums.clone()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        return self.value(sums)

    def reset(self) -> None:
        """Forget all batches."""
        self._sums = None

    def sums(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the sums over a batch, (K, ...)."""
        raise NotImplementedError

    def value(self, sums: Tensor) -> Tensor:
        """Return the metric, shape (), for the sums over all batches."""
        raise NotImplementedError


class Supervised(Task):
    """A model and a loss of its outputs and the targets, both of any structure.

    Outputs of 16 bits become float32. For torch's own losses and for metrics, outputs (B, ..., 1) for targets
    (B, ...) lose their last dimension, because most of these would broadcast them. A loss of your own gets it.

    Args:
        model: `inputs -> outputs`. It gets the inputs of the batch as they are, such as a dict.
        loss: a module or a function. Of torch's losses with an `ignore_index`, the mean is over the targets that count.
        metrics: torchmetrics by name, for evaluation. They are updated with `(outputs, targets)`.
        loss_of_batch: True: the loss has terms of several samples, such as pairs, and gets those of the whole batch.
    """

    def __init__(
        self, model: nn.Module, *, loss: Loss, metrics: Mapping[str, nn.Module], loss_of_batch: bool = False
    ) -> None:
        super().__init__(model, metrics)
        self.loss_of_batch = loss_of_batch
        self.loss = checked_loss(loss)
        self._is_of_torch = is_of_torch(self.loss)

    def assess(self, outputs: Tensors, batch: Batch) -> Outcome:
        """Return the loss of the model's outputs.

        Raises:
            ConfigError: the loss is no mean, a tensor of shape ().
        """
        raw = map_tensors(widened, outputs)
        outputs = fitted(raw, batch.targets)
        if self._is_of_torch:
            losses = self.loss(outputs, _in_dtype(batch.targets, outputs))
        else:
            losses = self.loss(raw, batch.targets)
        losses = dict(losses) if isinstance(losses, Mapping) else {"loss": losses}
        for name, loss in losses.items():
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                value = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
                message = f"gives {value} for {name!r}; it needs the samples' mean, a tensor of shape ()"
                raise ConfigError("task.loss", message)
        predictions = map_tensors(Tensor.detach, outputs)
        valid = self.loss.valid(batch.targets) if isinstance(self.loss, MeanOfValid) else None
        samples = Batch(outputs, ()) if self.loss_of_batch else batch
        num_targets = samples.num_samples if valid is None else valid.sum()
        measurements = self.measure(outputs, batch) if self.measures else {}
        return Outcome(losses, measurements, predictions, num_targets)

    def measure(self, outputs: Tensors, batch: Batch) -> dict[str, Tensor]:
        """Return the measurements of a batch. Default: none."""
        del outputs, batch
        return {}


def fitted(outputs: Tensors, targets: Tensors) -> Tensors:
    """Return outputs (B, ..., 1) for targets (B, ...) without the last dimension, and all others as they are.

    >>> import torch
    >>> fitted(torch.zeros(4, 1), torch.zeros(4)).shape, fitted(torch.zeros(4, 1), torch.zeros(4, 1)).shape
    (torch.Size([4]), torch.Size([4, 1]))
    """
    are_tensors = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
    return outputs.squeeze(-1) if are_tensors and outputs.shape == (*targets.shape, 1) else outputs


def _in_dtype(targets: Tensors, outputs: Tensors) -> Tensors:
    """Return floats in the dtype of the outputs: of two dtypes, some of torch's losses have no gradient."""
    are_tensors = isinstance(targets, Tensor) and isinstance(outputs, Tensor)
    are_floats = are_tensors and targets.is_floating_point() and outputs.is_floating_point()
    return targets.to(outputs.dtype) if are_floats else targets


class Regression(Supervised):
    """Squared, absolute or Huber error of the model's outputs, with both mean errors as measurements.

    Args:
        model: `inputs (B, ...) -> outputs` in the shape of the targets; (B, 1) also fits targets (B,).
        loss: `mse`, `mae` or `huber`. The latter is squared below `delta` and linear above it (Huber, 1964). Or another
            loss.
        delta: for `huber`: errors above it count linearly. Above 0.
        metrics: torchmetrics by name, for evaluation.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Literal["mse", "mae", "huber"] | Loss,
        delta: Positive,
        metrics: Mapping[str, nn.Module],
    ) -> None:
        losses: dict[str, Loss] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": nn.HuberLoss(delta=delta)}
        if isinstance(loss, str) and loss not in losses:
            raise unknown_name("task.loss", "loss", loss, losses)
        if _takes_logarithms(loss):
            message = "true makes the outputs logarithms, but task=regression measures them as numbers"
            remedy = "give false and a model whose outputs are above 0, or use task=supervised"
            raise ConfigError("task.loss.log_input", message, remedy=remedy)
        super().__init__(model, loss=losses[loss] if isinstance(loss, str) else loss, metrics=metrics)

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """Return the loss of the model's outputs. `batch.targets` (B, ...) are numbers.

        Raises:
            ConfigError: the outputs and the targets have different shapes.
        """
        outputs = widened(outputs)
        targets = tensor_targets(batch.targets, "regression").to(outputs.dtype)
        if fitted(outputs, targets).shape[1:] != targets.shape[1:]:
            needed = targets.shape[1] if targets.ndim == 2 else 1
            remedy = f"give {needed} output(s) by model.num_classes or its key" if targets.ndim < 3 else ""
            shape, of_targets = list(outputs.shape[1:]), list(targets.shape[1:])
            message = f"gives {shape} for a sample, but its targets have {of_targets}"
            raise ConfigError("model", f"{message}; a regression needs the same shape", remedy=remedy)
        return super().assess(outputs, Batch(batch.inputs, targets))._replace(num_targets=targets.numel())

    def measure(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        errors = outputs.detach() - batch.targets
        return {"mse": errors.square().mean(), "mae": errors.abs().mean()}


def _takes_logarithms(loss: object) -> bool:
    if isinstance(loss, partial) and loss.func is F.poisson_nll_loss:
        return loss.keywords.get("log_input", True)
    return isinstance(loss, nn.PoissonNLLLoss) and loss.log_input


class R2(MetricOfSums):
    """The coefficient of determination of a whole split: 1 - (squared errors) / (squared distances from the mean).

    1 is perfect, and 0 is as good as the mean of the targets. With several outputs it is the mean over them. Where all
    targets are equal, it is 1 without an error and else 0.

    >>> metric = R2()
    >>> metric.update(torch.tensor([2.5, 0.0, 2.0, 8.0]), torch.tensor([3.0, -0.5, 2.0, 7.0]))
    >>> round(float(metric.compute()), 4)
    0.9486
    """

    higher_is_better = True

    def sums(self, values: Tensor, targets: Tensor) -> Tensor:
        x, y = values.double(), targets.double()
        parts = [torch.ones_like(y), y, y.square(), (y - x).square()]
        return torch.stack([part.sum(dim=0) for part in parts])  # (4, ...)

    def value(self, sums: Tensor) -> Tensor:
        count, total, squares, errors = sums
        spread = squares - total.square() / count
        is_spread = spread > 1e-12 * squares  # less is rounding
        return torch.where(is_spread, 1 - errors / spread, (errors == 0).double()).mean()
