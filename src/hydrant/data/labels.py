"""The classes of samples, if they are known without reading the samples."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch

from hydrant.data.base import Source


@runtime_checkable
class Labelled(Protocol):
    """A source that knows the class of each sample without reading it."""

    @property
    def labels(self) -> np.ndarray | None:
        """The class of each sample, integers of shape (num_samples,); None if it is not known."""
        ...


def labels_of(source: Source) -> np.ndarray | None:
    """Return the class of each sample of a source, shape (num_samples,); None if the source does not know it."""
    return source.labels if isinstance(source, Labelled) else None


def as_labels(targets: object, num_samples: int) -> np.ndarray | None:
    """Return targets as labels; None if they are not one integer for each sample.

    >>> as_labels([1, 0, 1], 3), as_labels([0.5, 1.0], 2)
    (array([1, 0, 1]), None)
    """
    if not isinstance(targets, list | tuple | np.ndarray | torch.Tensor) or len(targets) != num_samples:
        return None
    try:
        labels = np.asarray(targets)
    except ValueError:  # lists of several lengths
        return None
    return labels if labels.ndim == 1 and labels.dtype.kind in "iu" else None
