"""The order of samples is one permutation per epoch, the same wherever reading starts."""

from __future__ import annotations

import pytest
import torch

from hydrant.clock import Steps
from hydrant.data.base import SampleOrder, StreamSpec, batch_ranges

CPU = torch.device("cpu")


def test_every_epoch_is_another_permutation() -> None:
    order = SampleOrder(seed=3, num_samples=50, device=CPU)
    epochs = [order.draws(50 * epoch, 50) for epoch in range(4)]
    for epoch, draws in enumerate(epochs):
        assert draws.sort().values.tolist() == list(range(50 * epoch, 50 * epoch + 50))
    assert len({tuple((draws % 50).tolist()) for draws in epochs}) == 4


@pytest.mark.parametrize("count", [1, 7, 50, 120])
def test_any_range_is_a_slice_of_the_whole_stream(count: int) -> None:
    whole = SampleOrder(seed=0, num_samples=50, device=CPU).draws(0, 400)
    for position in (0, 49, 50, 99, 250):  # inside an epoch, at its ends, across one or two borders
        fresh = SampleOrder(seed=0, num_samples=50, device=CPU)
        assert torch.equal(fresh.draws(position, count), whole[position : position + count])


def test_reading_backwards_changes_nothing() -> None:
    order, whole = SampleOrder(1, 10, CPU), SampleOrder(1, 10, CPU).draws(0, 60)
    for position in (50, 0, 30, 10):
        assert torch.equal(order.draws(position, 10), whole[position : position + 10])


def test_seeds_differ() -> None:
    assert not torch.equal(SampleOrder(0, 50, CPU).draws(0, 50), SampleOrder(1, 50, CPU).draws(0, 50))


@pytest.mark.parametrize(("micro_batch_size", "world_size"), [(24, 1), (8, 3), (4, 2), (1, 24)])
def test_positions_cover_each_update_once(micro_batch_size: int, world_size: int) -> None:
    positions: list[int] = []
    for rank in range(world_size):
        spec = StreamSpec(0, Steps.constant(24), micro_batch_size, rank, world_size, CPU)
        for start in spec.positions(5):
            positions.extend(range(start, start + micro_batch_size))
    assert sorted(positions) == list(range(5 * 24, 6 * 24))


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "world_size"), [(10, 4, 1), (10, 4, 2), (3, 2, 4), (8, 8, 2)]
)
def test_batch_ranges_cover_every_sample_once(num_samples: int, batch_size: int, world_size: int) -> None:
    parts = [
        part for rank in range(world_size) for part in batch_ranges(num_samples, batch_size, rank, world_size)
    ]
    assert sorted(index for part in parts for index in part) == list(range(num_samples))
    assert all(len(part) <= batch_size for part in parts)
