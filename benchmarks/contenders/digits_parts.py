"""Targets of the config of the Hydrant contender on the digits: its usual data and model, with turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from benchmarks.contenders.digits_samples import wrapped_digits
from benchmarks.contenders.work import TURNS
from hydrant.batch import Batch
from hydrant.data import Data
from hydrant.data.base import Stream
from hydrant.models import MLP

NETWORK: list[nn.Module] = []


class InTurns:
    """A stream that waits for its turn at the end of a block."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._turns = stream, TURNS.over([None])
        # The check of compiled runs requests the batches of the first update twice.
        self._num_started = 0

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        if num_updates == self._num_started:
            next(self._turns)
            self._num_started += 1
        yield from self._stream.micro_batches(num_updates)

    def close(self) -> None:
        self._stream.close()


def data(**settings: Any) -> Data:
    """Return the data; the config's `_target_`."""
    return wrapped_digits(InTurns, **settings)


def model(**settings: Any) -> nn.Module:
    """Return the model and keep it in NETWORK; the config's `_target_`."""
    NETWORK[:] = [MLP(**settings)]
    return NETWORK[0]
