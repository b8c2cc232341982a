"""Targets of the config of the Hydrant contender: the network, and the batches as a data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from benchmarks.contenders import work
from hydrant.batch import Batch
from hydrant.data import Data

PAIRS = work.batches()
NETWORK: list[nn.Module] = []


class Stream:
    """The batches of the training, one per update, split into micro-batches."""

    def __init__(self) -> None:
        parts = [work.split(pair) if work.SETTINGS.get("features") else [pair] for pair in PAIRS]
        self._batches = enumerate(work.TURNS.over([[Batch(*part) for part in pair] for pair in parts]))
        self._current: tuple[int, list[Batch]] = (-1, [])

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        # The check of compiled runs requests the batches of the first update several times.
        if num_updates != self._current[0]:
            self._current = next(self._batches)
        return iter(self._current[1])

    def close(self) -> None: ...


class Source:
    num_samples = work.BATCH_SIZE * len(PAIRS)

    def stream(self, spec: Any) -> Stream:
        return Stream()

    def batches(self, spec: Any, batch_size: int) -> list[Batch]:
        return [Batch(*(part[:batch_size].to(spec.device) for part in PAIRS[0]))]

    def subset(self, indices: Any) -> Source:
        return self


def data(*, input_shape: list[int], num_classes: int, **_: Any) -> Data:
    """Return the data; the config's `_target_`."""
    return Data(Source(), Source(), tuple(work.INPUT_SHAPE), work.NUM_CLASSES)


def model(**_: Any) -> nn.Module:
    """Return the model and keep it in NETWORK; the config's `_target_`."""
    NETWORK[:] = [work.network().cpu()]
    return NETWORK[0]
