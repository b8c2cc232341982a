"""What the config of the Hydrant contender on the digits calls: its own parts, in turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from benchmarks.contenders.work import TURNS
from hydrant.batch import Batch
from hydrant.data import Data, Source, StreamSpec, digits
from hydrant.data.base import Stream
from hydrant.models import MLP

NETWORK: list[nn.Module] = []


class InTurns:
    """A stream that waits for its turn where a block ends."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._turns = stream, TURNS.over([None])
        self._num_begun = (
            0  # a run that is compiled asks for its first update twice: it compares it with eager
        )

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        if num_updates == self._num_begun:
            next(self._turns)
            self._num_begun += 1
        yield from self._stream.micro_batches(num_updates)

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True)
class Training:
    """The training samples, on the device, as the run asks for them."""

    source: Source

    @property
    def num_samples(self) -> int:
        return self.source.num_samples

    def stream(self, spec: StreamSpec) -> InTurns:
        return InTurns(self.source.stream(spec))

    def batches(self, spec: StreamSpec, batch_size: int) -> Any:
        return self.source.batches(spec, batch_size)

    def first(self, num_samples: int) -> Source:
        return self.source.first(num_samples)


def data(**settings: Any) -> Data:
    """What the config calls."""
    own = digits(**settings)
    return Data(Training(own.train), own.val, own.input_shape, own.num_classes)


def model(**settings: Any) -> nn.Module:
    """What the config calls."""
    NETWORK[:] = [MLP(**settings)]
    return NETWORK[0]
