"""The interface of a task."""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, map_tensors, widened
from hydrant.config.schema import DEFAULT_METRIC
from hydrant.errors import ConfigError


def are_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Return for each target whether its class has the highest logit, (B, ...) bool. The mean is the accuracy.

    Args:
        logits: (B, C, ...) of C classes.
        targets: class indices, (B, ...) integers; or class probabilities or other logits, (B, C, ...) floats, whose
            largest value is the target class.

    >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    >>> are_correct(logits, torch.tensor([1, 1])), are_correct(logits, torch.tensor([[0.3, 0.7], [0.6, 0.4]]))
    (tensor([ True, False]), tensor([True, True]))
    """
    classes = targets.argmax(dim=1) if targets.is_floating_point() else targets
    return logits.argmax(dim=1) == classes


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
    held_by_parts = [part._buffers for part in module.modules()]  # pyright: ignore[reportPrivateUsage]
    places = [(held, dict(held)) for held in held_by_parts]
    buffers = [
        buffer for buffer in module.buffers() if not (nn.parameter.is_lazy(buffer) or _is_expanded(buffer))
    ]
    values = [(buffer, buffer.clone()) for buffer in buffers]
    try:
        yield
    finally:
        for held, before in places:  # a forward pass may add a buffer, or assign a new tensor to one
            held.clear()
            held.update(before)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


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
        message = (
            f"gives a {type(targets).__name__} as the targets of a batch, but task={task} needs a tensor"
        )
        remedy = "if its samples are dicts, name the field: data.target=<field>"
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
    """True: the loss has terms of several samples, such as pairs, so micro-batches change it."""
    measures_training = True  # False if nothing reads the measurements of training batches
    class_names: Sequence[str] | None = None  # of the data, if they have some
    ignore_index: int | None = None  # targets with this value do not count; None: all count

    def __init__(self, model: nn.Module, metrics: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.model = model
        self.metrics = nn.ModuleDict(metrics or {})

    def forward(self, batch: Batch) -> Outcome:
        """Return the losses and measurements of one batch."""
        raise NotImplementedError

    def receive_data(self, data: Any) -> None:
        """Read from a `Data` what the task needs, before the first batch. Default: the class names."""
        self.class_names = data.class_names

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
            kind = type(wrong[0]).__name__
            raise ConfigError(
                "task", f"a model whose outputs hold a {kind} needs a task with a method predict"
            )
        return cast("Mapping[str, Tensor]", named)

    @property
    def measures(self) -> bool:
        """Whether `forward` must return measurements. It may always do so."""
        return self.measures_training or not self.training

    def pictures(self) -> dict[str, Tensor]:
        """Return the pictures to log after each evaluation, by name: (3, H, W) or (1, H, W) in 0..1. Default: none."""
        return {}
