"""Meters and the pace."""

from __future__ import annotations

import time
from typing import cast

import pytest
import torch

from hydrant.batch import Later
from hydrant.metrics import Meter, Pace, merged
from hydrant.tasks.base import accuracy

CPU = torch.device("cpu")


@pytest.mark.parametrize("saved_at", [0, 2, 63, 64, 65, 130, 299])
def test_weighted_means_survive_a_save(saved_at: int) -> None:
    generator = torch.Generator().manual_seed(saved_at)
    weights = torch.randint(1, 3, (300,), generator=generator).repeat_interleave(40)[:300].tolist()
    values = [
        dict(zip(("loss", "accuracy"), torch.rand(2, generator=generator), strict=True)) for _ in weights
    ]
    whole, first, second = Meter(CPU), Meter(CPU), Meter(CPU)
    for position, (scalars, weight) in enumerate(zip(values, weights, strict=True)):
        whole.add(scalars, weight)
        if position == saved_at:
            second.load_state_dict(first.state_dict())
        (first if position < saved_at else second).add(scalars, weight)
        second.first_non_finite()  # to look changes nothing
    total = sum(weights)
    expected = {
        key: sum(float(v[key].double()) * w for v, w in zip(values, weights, strict=True)) / total
        for key in ("loss", "accuracy")
    }
    read = whole.read({"norm": torch.tensor(2.5)})
    assert read == pytest.approx(expected | {"norm": 2.5}, rel=1e-12)
    assert second.read() == {key: read[key] for key in expected}


def test_meters_of_several_ranks_make_one() -> None:
    meters = [Meter(CPU), Meter(CPU), Meter(CPU)]
    for value, weight in ((1.0, 3), (2.0, 3), (4.0, 1)):
        meters[0].add({"loss": torch.tensor(value)}, weight)
    meters[1].add({"loss": torch.tensor(8.0)}, 2)
    one = Meter(CPU)
    one.load_state_dict(merged([meter.state_dict() for meter in meters]))
    assert one.read() == {"loss": pytest.approx((3 + 6 + 4 + 16) / 9)}


def test_the_first_non_finite_is_named() -> None:
    meter = Meter(CPU)
    assert meter.first_non_finite() is None
    meter.add({"a": torch.tensor(1.0), "b": torch.tensor(float("inf"))}, 1)
    assert meter.first_non_finite() == "b"


def test_ranks_add_up() -> None:
    meter = Meter(CPU, reduce=lambda sums: sums * 4)  # four equal ranks
    meter.add({"a": torch.tensor(3.0)}, 2)
    assert meter.read() == {"a": 3.0}


def test_a_rank_without_targets_adds_nothing_and_takes_part() -> None:
    num_reads: list[int] = []
    meter = Meter(CPU, reduce=lambda sums: num_reads.append(len(sums)) or sums)
    meter.add({"a": torch.tensor(float("nan"))}, 0)
    assert meter.read() == {}
    meter.add({"a": torch.tensor(float("nan"))}, 0)
    meter.add({"a": torch.tensor(1.0)}, 2)
    assert meter.read() == {"a": 1.0}
    assert num_reads == [2, 2]


def test_the_pace_leaves_out_what_is_no_training() -> None:
    pace = Pace(10)
    pace.outside(lambda: time.sleep(0.2))
    time.sleep(0.02)
    assert pace.read(20) > 100  # 10 updates in 0.02 s, not in 0.22 s
    assert pace.logged_at == 20


@pytest.mark.parametrize("saved_at", [0, 5, 64, 100])
def test_what_is_computed_later_is_what_it_was_at_once(saved_at: int) -> None:
    """Whatever the shapes, though memory is written over, and a save lies between."""
    generator, num_calls = torch.Generator().manual_seed(saved_at), 0
    at_once, later, resumed = Meter(CPU), Meter(CPU), Meter(CPU)
    memory = torch.zeros(40, 5), torch.zeros(40, dtype=torch.int64)

    def counted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return accuracy(logits, targets)

    for position in range(150):
        size = 40 if position < 130 else 30
        logits, targets = (tensor[:size] for tensor in memory)
        logits.copy_(torch.rand(size, 5, generator=generator))
        targets.copy_(torch.randint(5, (size,), generator=generator))
        if position == saved_at:
            resumed.load_state_dict(later.state_dict())
        num_calls = 0 if position == saved_at else num_calls
        for meter in (later, resumed) if position >= saved_at else (later,):
            meter.add({"loss": logits[0, 0], "accuracy": Later(counted, (logits, targets))}, size)
        at_once.add({"loss": logits[0, 0], "accuracy": accuracy(logits, targets)}, size)
    assert later.read() == resumed.read() == at_once.read()
    assert num_calls <= 2 * 5  # of 64 batches at once, or until the size changes


def test_what_is_large_is_computed_at_once_and_not_kept() -> None:
    meter, large = Meter(CPU), torch.rand(200, 1000)
    meter.add({"accuracy": Later(accuracy, (large, large))}, 200)
    assert [type(kept) for kept in meter._pending] == [torch.Tensor]  # pyright: ignore[reportPrivateUsage]
    assert meter.read() == {"accuracy": 1.0}


def test_scalars_that_change_or_are_parts_are_taken_as_they_were() -> None:
    """A learned scale as a measurement: the mean is of what it was, also where a save lies between."""
    scale, meter, resumed = torch.nn.Parameter(torch.tensor(1.0)), Meter(CPU), Meter(CPU)
    large = torch.zeros(1000)
    for value in (1.0, 2.0, 6.0):
        scale.data.fill_(value)
        large[0] = value
        meter.add({"scale": scale, "part": large[0], "loss": 2 * scale}, weight=1)
    pending = cast("list[torch.Tensor]", meter._pending)  # pyright: ignore[reportPrivateUsage]
    assert all(kept.untyped_storage().nbytes() == 4 for kept in pending)
    resumed.load_state_dict(meter.state_dict())
    scale.data.fill_(100.0)
    assert meter.read() == resumed.read() == {"scale": 3.0, "part": 3.0, "loss": 6.0}
