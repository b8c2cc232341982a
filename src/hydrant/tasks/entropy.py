"""Cross entropies of logits, with class weights, label smoothing and targets that do not count."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

import torch.nn.functional as F
from torch import Tensor

from hydrant.errors import ConfigError

_OUT_OF_BOUNDS = re.compile(r"Target (-?\d+) is out of bounds")
_ROUNDING = 0.01  # of probabilities in 16 bits
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


def check_probabilities(targets: Tensor, *, each_alone: bool) -> None:
    """Check that targets are probabilities: of a label if `each_alone`, else of the classes in dimension 1.

    Raises:
        ConfigError: a number is outside of 0..1, or those of a target add up to more than 1. (Less is a lower weight.)
    """
    if not targets.numel():
        return
    low, high = float(targets.min()), float(targets.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        what = "labels are 0 or 1" if each_alone else "floats in the shape of the logits are probabilities"
        wrong = low if low < -_ROUNDING else high
        raise ConfigError("data", f"a target is {wrong:g}, but {what}", remedy="convert the targets")
    if each_alone:
        return
    sums = targets.sum(dim=1)
    if (is_wrong := sums > 1 + _ROUNDING).any():
        message = f"the class probabilities of a target add up to {float(sums[is_wrong][0]):g} instead of 1"
        remedy = "divide them by their sum, or use task.multi_label=true if a sample may have several labels"
        raise ConfigError("data", message, remedy=remedy)


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
        message = f"a sample has the class {index}, for which the model has no output; {remedy}"
        raise ConfigError("data.num_classes", message) from error


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
