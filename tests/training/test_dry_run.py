"""Samples for the checks before a run are read from any source; the error names why they cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from hydrant.batch import Batch
from hydrant.data import Data, Indices, StreamSpec
from hydrant.data.base import Stream
from hydrant.data.damaged import DamagedSamples
from hydrant.errors import ConfigError, DataError
from hydrant.training.dry_run import read_samples


@dataclass
class OwnSource:
    """Gives batches of `sizes`, whatever is asked for. Others are damaged."""

    sizes: tuple[int, ...]
    num_damaged: int = 0
    num_samples: int = 20
    damaged: DamagedSamples = field(default_factory=DamagedSamples)

    def stream(self, spec: StreamSpec) -> Stream:
        raise NotImplementedError

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterator[Batch]:
        del spec, batch_size
        self.damaged.record({f"sample {n}": "cannot be read" for n in range(self.num_damaged)})
        for size in self.sizes:
            yield Batch(torch.zeros(size, 4), torch.zeros(size, dtype=torch.int64))

    def subset(self, indices: Indices) -> OwnSource:
        del indices
        return self


def read(source: OwnSource, num_samples: int) -> Batch:
    return read_samples(Data(source, source, (4,), 2, source.damaged), source, num_samples)


@pytest.mark.parametrize("size", [1, 4])
def test_batches_of_another_size_than_asked_for_are_refused(size: int) -> None:
    message = rf"^data: OwnSource\.batches gives a batch of {size} samples, but batch_size=2 asks for 2$"
    with pytest.raises(ConfigError, match=message):
        read(OwnSource((size, size)), 2)


def test_a_short_batch_may_come_before_one_of_the_size_asked_for() -> None:
    """A source may leave out samples on its own."""
    assert len(read(OwnSource((1, 2)), 2).targets) == 2


def test_a_source_without_batches_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^data: OwnSource\.batches gives no batch, although it has 20 samples"
    ):
        read(OwnSource(()), 2)


def test_damaged_samples_are_passed_over() -> None:
    assert len(read(OwnSource((1, 2), num_damaged=3), 2).targets) == 2
    with pytest.raises(
        DataError, match=r"^no 2 samples in a row can be read; the log names the damaged ones"
    ):
        read(OwnSource((1, 1), num_damaged=3), 2)
    with pytest.raises(DataError, match=r"^no sample can be read; the log names the damaged ones"):
        read(OwnSource((), num_damaged=3), 1)
