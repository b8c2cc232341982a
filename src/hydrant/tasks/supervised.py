"""Any loss of the outputs of a model and the targets."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, map_tensors, widened
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task, check_single_model
from hydrant.tasks.losses import Loss, MeanOfValid, check_weight, checked_loss, is_of_torch


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
        self, model: nn.Module, *, loss: Loss, metrics: Mapping[str, nn.Module], loss_of_batch: bool = False
    ) -> None:
        super().__init__(model, metrics)
        self.loss_of_batch = loss_of_batch
        check_single_model(model)
        self.loss = checked_loss(loss)
        self._is_of_torch = is_of_torch(self.loss)

    def forward(self, batch: Batch) -> Outcome:
        return self.assess(self.model(batch.inputs), batch)

    def assess(self, outputs: Tensors, batch: Batch) -> Outcome:
        """Return the loss of the model's outputs.

        Raises:
            ConfigError: the loss is no mean, a tensor of shape ().
        """
        raw = map_tensors(widened, outputs)
        outputs = fitted(raw, batch.targets)
        check_weight(self.loss, batch.targets)
        losses = self.loss(outputs if self._is_of_torch else raw, batch.targets)
        losses = dict(losses) if isinstance(losses, Mapping) else {"loss": losses}
        for name, loss in losses.items():
            if not isinstance(loss, Tensor) or loss.ndim:
                found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
                message = (
                    f"gives {found} for {name!r}; it needs the mean over the samples, a tensor of shape ()"
                )
                raise ConfigError("task.loss", message)
        predictions = map_tensors(Tensor.detach, outputs)
        valid = self.loss.valid(batch.targets) if isinstance(self.loss, MeanOfValid) else None
        num_targets = batch.num_samples if valid is None else valid.sum()
        return Outcome(
            losses, self.measure(outputs, batch) if self.measures else {}, predictions, num_targets
        )

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
