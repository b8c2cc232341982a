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
    places, stream = torch.arange(len(labels)), seeding.mix(seed, seeding.LABELS)
    is_drawn = (seeding.uniform(stream, places, 0) < ratio).numpy()
    shifts = 1 + (seeding.uniform(stream, places, 1).double() * (num_classes - 1)).long().numpy()
    is_changed = is_drawn & (labels >= 0) & (labels < num_classes)
    noisy = np.where(is_changed, (labels + shifts) % num_classes, labels)
    if isinstance(source, InMemorySource):
        assert isinstance(source.targets, torch.Tensor)  # else it has no labels
        return replace(source, targets=torch.from_numpy(noisy).to(source.targets))
    if isinstance(source, LoaderSource):
        return replace(source, samples=_Relabelled(source.samples, noisy))
    raise ConfigError(key, f"the labels of a {type(source).__name__} cannot be replaced", remedy="give 0")


@dataclass(frozen=True)
class _Relabelled:
    """The samples of a set with other labels."""

    samples: SampleSet
    targets: np.ndarray  # int64, (N,)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int, /) -> tuple[Any, Any]:
        return self.samples[index][0], int(self.targets[index])
