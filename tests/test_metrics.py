"""Meters and the pace."""

from __future__ import annotations

import time

import pytest
import torch

from hydrant.metrics import Meter, Pace

CPU = torch.device("cpu")


def test_weighted_means_survive_a_save() -> None:
    whole, first, second = Meter(CPU), Meter(CPU), Meter(CPU)
    values = [({"loss": torch.rand(()), "accuracy": torch.rand(())}, weight) for weight in (3, 1, 5, 2)]
    for scalars, weight in values:
        whole.add(scalars, weight)
    for scalars, weight in values[:2]:
        first.add(scalars, weight)
    second.load_state_dict(first.state_dict())
    for scalars, weight in values[2:]:
        second.add(scalars, weight)
    expected = {key: sum(float(s[key].double()) * w for s, w in values) / 11 for key in ("loss", "accuracy")}
    read = whole.read({"norm": torch.tensor(2.5)})
    assert read == pytest.approx(expected | {"norm": 2.5}, rel=1e-12)
    assert second.read() == {key: read[key] for key in expected}


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
