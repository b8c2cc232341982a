"""Damaged samples: the next one replaces them, or they end the run; numbers of samples tell which are missing."""

import logging
import re
from dataclasses import replace

import pytest
import torch
from sources import as_input

from hydrant.clock import Steps
from hydrant.data import LoaderSource, StreamSpec
from hydrant.data.base import MAX_DAMAGED_IN_A_ROW, DamagedSamples
from hydrant.errors import DataError, OutOfMemory

SPEC = StreamSpec(0, Steps.constant(8), 4, 0, 1, torch.device("cpu"))


class Samples:
    """`count` samples whose value is their index. Reading a sample in `damaged` raises `error`."""

    def __init__(self, *damaged: int, error: BaseException | None = None, count: int = 20) -> None:
        self.damaged, self.error, self.count = damaged, error, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index in self.damaged:
            raise self.error or ValueError(f"{index} is torn")
        return index, index


def make_source(samples: Samples, num_workers: int = 0, *, skip: bool = True) -> LoaderSource:
    damaged = DamagedSamples(skip, remedy="; mend it")
    return LoaderSource(samples, as_input, as_input, (0.0,), (1.0,), num_workers, damaged=damaged)


def read(source: LoaderSource, updates: range, world_size: int = 1, micro_batch_size: int = 4) -> list[int]:
    """Return the targets of some updates, in the order of the stream."""
    targets = list[int]()
    streams = [source.stream(replace(SPEC, micro_batch_size=micro_batch_size, world_size=world_size, rank=rank))
               for rank in range(world_size)]  # fmt: skip
    try:
        for update in updates:
            steps = zip(*(stream.micro_batches(update) for stream in streams), strict=True)
            targets += [int(t) for step in steps for batch in step for t in batch.targets]
    finally:
        for stream in streams:
            stream.close()
    return targets


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_next_readable_sample_replaces_a_damaged_one(num_workers: int) -> None:
    whole = read(make_source(Samples()), range(5))
    expected = [{3: 5, 4: 5, 19: 0}.get(index, index) for index in whole]
    assert {3, 4, 19} <= set(whole)
    damaged = make_source(Samples(3, 4, 19), num_workers)
    assert read(damaged, range(5)) == expected
    assert read(damaged, range(2, 5)) == expected[16:]  # like after a resume
    for world_size, micro_batch_size in ((1, 8), (2, 4)):
        assert read(damaged, range(5), world_size, micro_batch_size) == expected
    assert damaged.damaged.num_damaged == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_leaves_damaged_samples_out(num_workers: int) -> None:
    damaged = make_source(Samples(0, 1, 2, 3, 7, 19), num_workers)
    batches = [batch.targets.tolist() for batch in damaged.batches(SPEC, 4)]
    assert batches == [[4, 5, 6], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18]]


def test_damaged_samples_have_no_number() -> None:
    source = make_source(Samples(2, 5, count=8))
    for chosen, expected in ((source, [0, 1, 3, 4, 6, 7]), (source.subset(range(3, 8)), [0, 1, 3, 4])):
        read_ones = list(chosen.batches(SPEC, 2).numbered())
        assert [n for numbers, _ in read_ones for n in numbers.tolist()] == expected
        values = [n + 8 - chosen.num_samples for n in expected]
        assert [v for _, batch in read_ones for v in batch.inputs.flatten().tolist()] == values
        assert [t for _, batch in read_ones for t in batch.targets.tolist()] == values


def test_each_damaged_sample_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    damaged = make_source(Samples(3, 7), 2)
    with caplog.at_level(logging.WARNING, logger="hydrant"):
        read(damaged, range(10))
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 2
    for index, message in zip((3, 7), messages, strict=True):
        assert message.startswith(
            f"skipped: sample {index} of the data set cannot be read: ValueError: {index} "
        )


def test_too_many_damaged_samples_in_a_row_are_not_skipped() -> None:
    source = make_source(Samples(*range(MAX_DAMAGED_IN_A_ROW + 20), count=MAX_DAMAGED_IN_A_ROW + 21))
    refusal = rf"^{MAX_DAMAGED_IN_A_ROW} samples in a row .* the first: sample \d+ of"
    with pytest.raises(DataError, match=refusal):
        read(source, range(20))


def test_the_error_counts_the_samples_if_all_are_damaged() -> None:
    with pytest.raises(DataError, match=r"^none of the 20 samples can be read; the first: sample \d+ of"):
        read(make_source(Samples(*range(20))), range(1))


def test_only_rank_0_logs_damaged_samples(caplog: pytest.LogCaptureFixture) -> None:
    """It also logs what the other ranks skipped, when the ranks merge."""
    sources = [make_source(Samples(3 + rank)) for rank in range(2)]
    sources[1].damaged.is_rank_zero = False
    for source in sources:
        read(source, range(5))
    assert logged_samples(caplog) == [3]
    for source in sources:
        source.damaged.merge_ranks(lambda _: [source.damaged._messages for source in sources])
    assert logged_samples(caplog) == [3, 4]
    assert sources[0].damaged.num_damaged == 2


def logged_samples(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the samples in the warnings so far."""
    return [int(re.findall(r"skipped: sample (\d+)", record.getMessage())[0]) for record in caplog.records]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_skip_the_error_ends_with_the_remedy(num_workers: int) -> None:
    with pytest.raises(DataError, match=r"^sample 3 of the data set .* \(at .*\.py:\d+\); mend it$"):
        read(make_source(Samples(3), num_workers, skip=False), range(5))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_full_memory_is_not_a_damaged_sample(num_workers: int) -> None:
    with pytest.raises(OutOfMemory, match=r"no memory left to read sample 3 .* lower data\.num_workers"):
        read(make_source(Samples(3, error=MemoryError()), num_workers), range(5))
