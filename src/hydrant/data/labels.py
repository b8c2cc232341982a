"""The classes of samples, if they are known without reading the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from hydrant.data.base import Source
from hydrant.errors import ConfigError


def labels_of(source: Source) -> np.ndarray | None:
    """Return the class of each sample of a source, shape (num_samples,); None if the source does not know it."""
    return getattr(source, "labels", None)


def as_labels(targets: object, num_samples: int) -> np.ndarray | None:
    """Return targets as labels; None if they are not one integer for each sample.

    >>> as_labels([1, 0, 1], 3), as_labels([0.5, 1.0], 2)
    (array([1, 0, 1]), None)
    """
    if not isinstance(targets, list | tuple | np.ndarray | torch.Tensor) or len(targets) != num_samples:
        return None
    if isinstance(targets, torch.Tensor):
        if targets.is_floating_point() or targets.is_complex():  # NumPy lacks some of these types
            return None
        targets = targets.cpu()
    try:
        labels = np.asarray(targets)
    except ValueError:  # lists of several lengths
        return None
    return labels if labels.ndim == 1 and labels.dtype.kind in "iu" else None


_CHANCE = 0.01  # a random choice of samples that lacks so many classes is no chance


def classes_of_the_first(labels: np.ndarray, num_samples: int) -> tuple[np.ndarray, int] | None:
    """Return the classes of the first samples and the number of all, if the order of the samples leaves some out.

    None: the first samples have all classes, or are so few that a random choice could lack as many. The chances of that
    are bounded by Boole (no larger class is absent) and by Chernoff, whose bound holds because a class that is absent
    makes the others less likely to be. Negative labels are no class.

    >>> classes_of_the_first(np.repeat([0, 1, 2], 8), 8), classes_of_the_first(np.repeat([0, 1, 2], 8), 2)
    ((array([0]), 3), None)
    """
    (classes, sizes), (first, drawn) = (
        np.unique(part[part >= 0], return_counts=True) for part in (labels, labels[:num_samples])
    )
    if len(first) == len(classes):
        return None
    total, others = sizes.sum(), np.arange(sizes.max())
    absent = np.cumprod(np.maximum(total - drawn.sum() - others, 0) / (total - others))[sizes - 1]
    largest, expected = sizes[~np.isin(classes, first)].max(), absent.sum()
    chance = min(
        absent[sizes >= largest].sum(),
        _tail(len(first), len(classes) - expected),
        _tail(len(classes) - len(first), expected),
    )
    return (first, len(classes)) if chance < _CHANCE else None


def _tail(count: int, mean: float) -> float:
    """Return Chernoff's bound of the chance that a sum of 0s and 1s is as far from its mean as `count`, on its side."""
    log_ratio = math.log(max(mean, 1e-300) / count) if count else 0.0
    return math.exp(min(count * (1 + log_ratio) - mean, 0))


def check_same_classes(split: str, names: Sequence[str] | None, learned: Sequence[str] | None) -> None:
    """Check that the numbers of the classes of a split mean what they mean in training, where both have names.

    Raises:
        ConfigError: a number has another name, or none in training.
    """
    if names is None or learned is None:
        return
    for number, name in enumerate(names):
        there = learned[number] if number < len(learned) else None
        if name != there:
            meaning = "is no class of the training samples" if there is None else f"is {there!r} in training"
            remedy = "give all splits the classes of the training samples, in their order"
            raise ConfigError("data", f"class {number} of {split} is {name!r}, and {meaning}", remedy=remedy)
