"""Any loss of the outputs of a model and the targets.

Regression: one number or several for a sample.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, map_tensors, widened
from hydrant.errors import ConfigError, unknown_name
from hydrant.files.plain_values import Positive
from hydrant.tasks import losses as task_losses
from hydrant.tasks.base import Task, tensor_targets


class Supervised(Task):
    """A model and a loss of its outputs and the targets, both of any structure.

    Outputs of 16 bits become float32. For torch's own losses and for metrics, outputs (B, ..., 1) for targets
    (B, ...) lose their last dimension, because most of these would broadcast them. A loss of your own gets it.

    Args:
        model: `inputs -> outputs`. It gets the inputs of the batch as they are, such as a dict.
        loss: a module or a function. Of torch's losses with an `ignore_index`, the mean is over the targets that count.
        metrics: torchmetrics by name, for evaluation. They are updated with `(outputs, targets)`.
        loss_of_batch: True: the loss has terms of several samples, such as pairs, so micro-batches are refused.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: task_losses.Loss,
        metrics: Mapping[str, nn.Module],
        loss_of_batch: bool = False,
    ) -> None:
        super().__init__(model, metrics)
        self.loss_of_batch = loss_of_batch
        self.loss = task_losses.checked_loss(loss)
        self._is_of_torch = task_losses.is_of_torch(self.loss)

    def forward(self, batch: Batch) -> Outcome:
        return self.assess(self.model(batch.inputs), batch)

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
            if not isinstance(loss, Tensor) or loss.ndim:
                value = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
                message = (
                    f"gives {value} for {name!r}; it needs the mean of the samples, a tensor of shape ()"
                )
                raise ConfigError("task.loss", message)
        predictions = map_tensors(Tensor.detach, outputs)
        valid = self.loss.valid(batch.targets) if isinstance(self.loss, task_losses.MeanOfValid) else None
        num_targets = batch.num_samples if valid is None else valid.sum()
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
        loss: Literal["mse", "mae", "huber"] | task_losses.Loss,
        delta: Positive,
        metrics: Mapping[str, nn.Module],
    ) -> None:
        losses: dict[str, task_losses.Loss] = {
            "mse": F.mse_loss,
            "mae": F.l1_loss,
            "huber": nn.HuberLoss(delta=delta),
        }
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
            remedy = f"give model.num_classes={needed}" if targets.ndim < 3 else ""
            shape, of_targets = list(outputs.shape[1:]), list(targets.shape[1:])
            message = f"gives {shape} for a sample, but its targets have {of_targets}"
            raise ConfigError("model", f"{message}; a regression needs the same shape", remedy=remedy)
        return super().assess(outputs, Batch(batch.inputs, targets))._replace(num_targets=targets.numel())

    def measure(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        errors = outputs - batch.targets
        return {"mse": errors.square().mean(), "mae": errors.abs().mean()}


def _takes_logarithms(loss: object) -> bool:
    if isinstance(loss, partial) and loss.func is F.poisson_nll_loss:
        return loss.keywords.get("log_input", True)
    return isinstance(loss, nn.PoissonNLLLoss) and loss.log_input


class R2(task_losses.MetricOfSums):
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
