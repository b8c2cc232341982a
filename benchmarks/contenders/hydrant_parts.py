"""Targets of the config of the Hydrant contender: the network, and the batches as a data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from benchmarks.contenders.work import BATCH_SIZE, INPUT_SHAPE, NUM_CLASSES, SETTINGS, TURNS, batches, network
from hydrant.batch import Batch
from hydrant.data import Data

PAIRS = [Batch(*pair) for pair in batches()]
SIZE = BATCH_SIZE // (2 if SETTINGS["features"] else 1)
NETWORK: list[nn.Module] = []


class Stream:
    """The batches of the training, one per update, split into micro-batches."""

    def __init__(self) -> None:
        split = [
            [Batch(*(part[at : at + SIZE] for part in pair)) for at in range(0, BATCH_SIZE, SIZE)]
            for pair in PAIRS
        ]
        self._batches = enumerate(TURNS.over(split))
        self._current: tuple[int, list[Batch]] = (-1, [])

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        # The check of compiled runs requests the batches of the first update several times.
        if num_updates != self._current[0]:
            self._current = next(self._batches)
        return iter(self._current[1])

    def close(self) -> None: ...


class Source:
    num_samples = BATCH_SIZE * len(PAIRS)

    def stream(self, spec: Any) -> Stream:
        return Stream()

    def batches(self, spec: Any, batch_size: int) -> list[Batch]:
        return [Batch(*(part[:batch_size].to(spec.device) for part in PAIRS[0][:2]))]

    def first(self, num_samples: int) -> Source:
        return self


def data(*, input_shape: list[int], num_classes: int, **_: Any) -> Data:
    """Return the data; the config's `_target_`."""
    return Data(Source(), Source(), tuple(INPUT_SHAPE), NUM_CLASSES)


def model(**_: Any) -> nn.Module:
    """Return the model and keep it in NETWORK; the config's `_target_`."""
    NETWORK[:] = [network().cpu()]
    return NETWORK[0]
