"""Wrong labels on purpose: a part of the training samples gets another class, the same in every epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hydrant import seeding
from hydrant.data.base import Source
from hydrant.data.in_memory import InMemorySource
from hydrant.data.labels import labels_of
from hydrant.data.loader import LoaderSource, SampleSet
from hydrant.errors import ConfigError


def with_label_noise(source: Source, ratio: float, seed: int, num_classes: int | None) -> Source:
    """Return a source in which each label is, with the probability `ratio`, one of the other classes, evenly drawn.

    This is the label noise of Nakkiran et al., "Deep double descent", 2019. Which labels change, and to what, depends
    on `seed` and the place of a sample in the source, so the first samples have the same labels if there are fewer.
    Labels that are no class, such as -100, stay.

    Raises:
        ConfigError: the classes are unknown, or there is only one.
    """
    key, labels = "label_noise", labels_of(source)
    if labels is None or num_classes is None:
        message = (
            "needs a classification whose labels are known before a sample is read, such as data in memory"
        )
        raise ConfigError(key, f"{message}, data=image_folder, or a data set with `targets`", remedy="give 0")
    if num_classes < 2:
        raise ConfigError(
            key, "needs two classes or more, because a wrong label is one of the others", remedy="give 0"
        )
    places, stream = torch.arange(len(labels)), seeding.hash_of(seed, seeding.LABELS)
    is_drawn = (seeding.uniform(stream, places, 0) < ratio).numpy()
    shifts = 1 + (seeding.uniform(stream, places, 1).double() * (num_classes - 1)).long().numpy()
    labels, shifts = labels.astype(np.int64), np.where(is_drawn, shifts, 0)
    if isinstance(source, InMemorySource):
        assert isinstance(source.targets, torch.Tensor)  # else it has no labels
        noisy = torch.from_numpy(_shifted(labels, shifts, num_classes))
        return replace(source, targets=noisy.to(source.targets.device))  # uint8 may not hold all classes
    if isinstance(source, LoaderSource):
        return replace(source, samples=_Relabelled(source.samples, labels, shifts, num_classes))
    raise ConfigError(key, f"the labels of a {type(source).__name__} cannot be replaced", remedy="give 0")


def _shifted(labels: np.ndarray | int, shifts: np.ndarray, num_classes: int) -> np.ndarray:
    """Return labels moved on by `shifts` classes, after the last one from 0. Labels that are no class stay."""
    is_class = (np.asarray(labels) >= 0) & (np.asarray(labels) < num_classes)
    return np.where(is_class, (labels + shifts) % num_classes, labels)


@dataclass(frozen=True)
class _Relabelled:
    """The samples of a set, whose labels are shifted when they are read: `targets` may hold others than they have."""

    samples: SampleSet
    labels: np.ndarray  # int64, (N,), those in the attribute `targets` of the samples
    shifts: np.ndarray  # int64, (N,)
    num_classes: int

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int, /) -> tuple[Any, Any]:
        sample, label = self.samples[index]
        return sample, int(_shifted(int(label), self.shifts[index], self.num_classes))

    @property
    def targets(self) -> np.ndarray:
        return _shifted(self.labels, self.shifts, self.num_classes)
