"""Losses that users give to a task. They must be means over the targets, however micro-batches divide these.

Cross entropies of logits, with class weights, label smoothing and targets that do not count.

Metrics of a whole split that are no mean over batches, but a function of sums over its targets.
"""

import contextlib
import copy
import re
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.errors import ConfigError

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

    def __init__(self, loss: nn.Module) -> None:
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
        message = (
            "torch divides by the sum of a micro-batch's weights, so the result would depend on its size"
        )
        remedy = "write task=classification task.class_weights=[...] instead, which divides by the number of targets"
        raise ConfigError("task.loss.weight", message, remedy=remedy)
    return MeanOfValid(made)  # pyright: ignore[reportArgumentType] # a module, as it has ignore_index


def is_of_torch(loss: object) -> bool:
    """Return whether torch computes a loss, perhaps for Hydrant. Most of those broadcast the shapes that they get."""
    made_by = loss.func if isinstance(loss, partial) else getattr(type(loss), "forward", loss)
    return str(getattr(made_by, "__module__", "")).startswith(("torch.nn.", __name__))


_OUT_OF_BOUNDS = re.compile(r"Target (-?\d+) is out of bounds")
_NO_INDEX = -(2**31)  # a value that no target has


def cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, valid: Tensor | None
) -> Tensor:
    """Return the mean cross entropy, shape (). Terms are multiplied by class weights, which are not normalized.

    Args:
        logits: (B, C, ...).
        targets: class indices, (B, ...) int64, or class probabilities, (B, C, ...).
        weights: of the classes, (C,), or None.
        smoothing: label smoothing, 0..1.
        valid: which targets count, (B, ...) bool; None: all.

    >>> import torch
    >>> logits = torch.zeros(3, 2)
    >>> round(float(cross_entropy(logits, torch.tensor([0, 1, 1]), torch.tensor([4.0, 1.0]), 0.0, None)), 4)
    1.3863
    """
    is_index = not targets.is_floating_point()
    if valid is not None:
        targets = targets.where(valid, _NO_INDEX)
    if logits.ndim > 2 and (classes_last := logits.movedim(1, -1)).is_contiguous():  # faster in this order
        logits = classes_last.flatten(0, -2)
        targets = targets.flatten() if is_index else targets.movedim(1, -1).flatten(0, -2)
    if weights is None and valid is None:
        return F.cross_entropy(logits, targets, ignore_index=_NO_INDEX, label_smoothing=smoothing)
    terms = F.cross_entropy(
        logits, targets, weights, ignore_index=_NO_INDEX, reduction="none", label_smoothing=smoothing
    )
    return terms.mean() if valid is None else terms.sum() / valid.sum().clamp(min=1)


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
        outputs = f"data.num_classes={index + 1} or more, and a model with as many outputs"
        needed = f"subtract 1 from labels that begin with 1, as classes count from 0; else give {outputs}"
        remedy = "give task.ignore_index, if such targets do not count" if index < 0 else needed
        message = f"a sample has the class {index}, for which the model has no output"
        raise ConfigError("data.num_classes", message, remedy=remedy) from error


def binary_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float, valid: Tensor | None
) -> Tensor:
    """Return the mean binary cross entropy, shape ().

    Args:
        logits: (B, C, ...).
        targets: whether a label is there, 0..1, float, in the shape of the logits.
        weights: of the targets that are 1, for each label, (C,), or None.
        smoothing: label smoothing, 0..1.
        valid: which targets count, bool; None: all.
    """
    smoothed = targets * (1 - smoothing) + smoothing / 2 if smoothing else targets
    per_label = None if weights is None else weights.view(-1, *[1] * (logits.ndim - 2))
    terms = F.binary_cross_entropy_with_logits(logits, smoothed, pos_weight=per_label, reduction="none")
    return terms.mean() if valid is None else terms.where(valid, 0).sum() / valid.sum().clamp(min=1)


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
