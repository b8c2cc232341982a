"""The order of samples is one permutation per epoch, the same wherever reading starts."""

from typing import Any

import pytest
import torch

from hydrant.clock import Steps
from hydrant.data import Data, InMemorySource
from hydrant.data.base import SampleOrder, StreamSpec, batch_ranges, changed_statistics
from hydrant.errors import ConfigError

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
    parts = [part for r in range(world_size) for part in batch_ranges(num_samples, batch_size, r, world_size)]
    assert sorted(index for part in parts for index in part) == list(range(num_samples))
    assert all(len(part) <= batch_size for part in parts)


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    num_comparisons = 0

    def __eq__(self, other: object) -> bool:
        Name.num_comparisons += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_names_of_many_classes_are_not_compared_with_each_other() -> None:
    names = [Name(number) for number in range(1000)]
    source = InMemorySource(torch.zeros(4, 1), torch.zeros(4).long())
    Name.num_comparisons = 0
    Data(source, source, num_classes=1000, class_names=tuple(names))
    assert Name.num_comparisons < 10_000
    with pytest.raises(ConfigError, match="two classes are named '7'"):
        Data(source, source, num_classes=1001, class_names=(*names, Name(7)))


def statistics(mean: float, std: float = 1e6, texts: tuple[str, ...] = ("blue", "red")) -> dict[str, Any]:
    return {"categories": [["colour", [*texts]]], "mean": {"x": mean}, "std": {"x": std}}


@pytest.mark.parametrize(
    ("was", "now", "difference"),
    [
        (statistics(1e-10), statistics(-3e-10), ""),  # sums of numbers around 1e6 and -1e6, rounded
        (statistics(0.0), statistics(0.01), "data.mean.x was 0.0 and is now 0.01"),
        (statistics(1e-6, 1e-6), statistics(1e-6 + 1e-11, 1e-6), "data.mean.x was 1e-06 and is now 1.00001e-06"),
        (statistics(1.0, 2.0), statistics(1.0, 3.0), "data.std.x was 2.0 and is now 3.0"),
        (statistics(1.0), statistics(1.0, texts=("blue", "teal")),
         "data.categories.0.1.1 was 'red' and is now 'teal'"),
        (statistics(1.0, texts=("a",)), statistics(1.0, texts=("a", "b")),
         "data.categories.0.1.1 was missing and is now 'b'"),
    ],
)  # fmt: skip
def test_statistics_change_by_more_than_rounding(
    was: dict[str, Any], now: dict[str, Any], difference: str
) -> None:
    assert changed_statistics(was, now) == difference


def test_the_difference_of_large_statistics_is_short() -> None:
    was, now = statistics(1.0, texts=tuple(map(str, range(5000)))), statistics(1.0, texts=("blue",))
    assert len(changed_statistics(was, now)) < 200
    now["categories"] = []
    assert len(changed_statistics(was, now)) < 200
