"""What the loop asks of a task."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from hydrant.batch import Batch, Outcome


def are_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Of which samples the class has the highest logit, (B,) bool: their share is the accuracy.

    `logits` are (B, num_classes), `targets` class numbers, (B,) int64, or shares of the classes or other logits,
    (B, num_classes), of which the largest counts.

    >>> import torch
    >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    >>> are_correct(logits, torch.tensor([1, 1])), are_correct(logits, torch.tensor([[0.3, 0.7], [0.6, 0.4]]))
    (tensor([ True, False]), tensor([True, True]))
    """
    classes = targets if targets.ndim == 1 else targets.argmax(dim=1)
    return logits.argmax(dim=1) == classes


class Task(nn.Module):
    """A model together with its losses, as one module. It is what is compiled and spread over ranks.

    Args:
        model: what checkpoints and exports hold; several are an `nn.ModuleDict`. Reach it as `self.model` each time:
            in evaluation an averaged one may be in its place.
        metrics: torchmetrics by name, updated with `(predictions, targets)` in evaluation, for what no mean over
            batches can give (F1, AUROC ...).
    """

    model: nn.Module
    metrics: nn.ModuleDict
    measures_training = True  # false where nobody reads what it measures of a training batch

    def __init__(self, model: nn.Module, metrics: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.model = model
        self.metrics = nn.ModuleDict(metrics or {})

    def forward(self, batch: Batch) -> Outcome:
        """The losses and measurements of one batch."""
        raise NotImplementedError

    @property
    def measures(self) -> bool:
        """Whether `forward` is to give measurements; it may always."""
        return self.measures_training or not self.training

    def pictures(self) -> dict[str, Tensor]:
        """What is drawn after every evaluation: by name, (3, H, W) or (1, H, W) in 0..1. Nothing, for most."""
        return {}
