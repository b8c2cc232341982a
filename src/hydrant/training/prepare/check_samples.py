"""Checks that samples are what a run takes them for: their labels, and functions of the seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from torch import Tensor

from hydrant.batch import Batch, tensors_of
from hydrant.data import Data, IterableSource, Source
from hydrant.data.base import ON_HOST, Indices, digest_of_samples
from hydrant.data.labels import labels_of
from hydrant.data.loader import LoaderSource
from hydrant.errors import ConfigError, log
from hydrant.training.distributed.world import World
from hydrant.training.prepare.unsaved_state import are_equal

_NUM_READ = 16


def warn_of_own_draws(data: Data) -> None:
    """Warn of samples that are other ones when they are read again, as from a generator that the data set keeps."""
    for key, source in (("data.train", data.train), ("data.val", data.val)):
        if not isinstance(source, LoaderSource):
            continue
        # One worker reads both, as in a run: in this process, a data set would open files that workers must not share.
        batches = _each(source, range(1))
        first, again = ([*_tensors(batches)] for _ in range(2))
        if len(first) != len(again) or not all(map(are_equal, first, again)):
            log.warning(
                "%s: a sample that is read twice has other numbers, so a run that continues, or has another "
                "data.num_workers, is another one; draw from the global generators of torch, NumPy or Python, which "
                "are seeded for each sample, and keep no generator or count",
                key,
            )


def check_labels(train: Source) -> None:
    """Read some samples of a source and check that their targets are its labels, by which classes are balanced.

    Raises:
        ConfigError: one has another target, for example by a `target_transform`.
    """
    labels = labels_of(train)
    if labels is None:
        return
    places = np.unique(np.linspace(0, len(labels) - 1, _NUM_READ).astype(int))
    targets = [batch.targets for batch in _each(train, places)]
    if len(targets) < len(places):  # damaged samples are left out
        return
    for place, target in zip(places.tolist(), targets, strict=True):
        if isinstance(target, Tensor) and target.numel() == 1 and target.item() != labels[place]:
            counted = f"balanced counts {labels[place]} for training sample {place}, whose target is {target.item()}"
            reason = "the attribute targets of the data set holds other numbers than its samples have"
            remedy = "give a number for each class"
            raise ConfigError("task.class_weights", f"{counted}: {reason}", remedy=remedy)


def check_ranks_read_alike(data: Data, first: Mapping[str, Batch], world: World) -> None:
    """Check that the splits of a stream have the same first samples on every rank: each keeps a part of what all read.

    Raises:
        ConfigError: they differ, so the stream has been divided before.
    """
    for key, batch in first.items():
        divided = isinstance(data.train, IterableSource) and data.train.is_divided and key == "data.train"
        if not divided and len({*world.all_gather(digest_of_samples([batch]))}) > 1:
            train = (
                "set data.divided=true (without limit_train_samples) if RANK or WORLD_SIZE divides it, or "
            )
            remedy = f"{train * (key == 'data.train')}read the same samples on each rank"
            raise ConfigError(key, "each rank reads other samples, and keeps a part of them", remedy=remedy)


def _tensors(batches: Iterable[Batch]) -> Iterator[Tensor]:
    for batch in batches:
        for tree in batch:
            yield from tensors_of(tree)


def _each(source: Source, places: Indices) -> Iterable[Batch]:
    """Return the samples at these places, as an evaluation on the host reads them, each as a batch."""
    return source.subset(places).batches(ON_HOST, 1)
