"""The classes of samples, if they are known without reading the samples."""

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
