"""What a run shows of its evaluations, and its last lines."""

from pathlib import Path

import pytest
import torch
from timm.optim import create_optimizer_v2
from tiny_runs import tiny_job

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.optimizers.kernels import arguments_of
from hydrant.runs.reporter import end_lines, is_shown, result_text, training_seconds
from hydrant.training.prepare.build import prepare
from hydrant.training.trainer import Plan, TrainState


def planned(*words: str) -> Plan:
    return prepare(check(compose(["tracker=local", *words])), is_preview=True)


@pytest.mark.parametrize(("interval", "total"), [("1ep", 400), ("17", 528), ("20ep", 20), ("null", 0)])
def test_of_many_evaluations_about_twenty_are_shown(interval: str, total: int) -> None:
    """And the first and the last one, which a resumed run shows as an uninterrupted one does."""
    plan = planned("duration=400ep", f"eval_every={interval}")
    every, end = plan.intervals.eval_every, plan.clock.total_updates
    due = [n for n in range(1, end + 1) if every.due(n)]
    shown = [n for n in due if is_shown(plan, n)]
    assert len(due) == total
    assert len(shown) == min(total, 20) or 10 < len(shown) <= 20 < total
    assert is_shown(plan, 0)
    assert is_shown(plan, end)


def test_the_time_of_a_run_is_that_of_its_updates_and_of_the_command() -> None:
    rows = [
        {"num_updates": n, "perf/updates_per_second": rate}
        for n, rate in [(100, 50.0), (200, 100.0), (300, 25.0)]
    ]
    assert training_seconds([{"num_updates": 0}, *rows]) == 7
    assert training_seconds(rows, after=200) == 4
    assert training_seconds(rows, after=300) is None
    job, summary = tiny_job(Path("outputs/first")), {"perf": {"updates_per_second": 107.0}}
    lasted = "training of 0:14 with start and evaluations, median"
    assert end_lines(job, 14.0, summary, rows)["duration"] == f"0:07 {lasted} 25 updates/s"
    assert end_lines(job, 14.0, summary)["duration"] == "0:14"
    resumed = end_lines(
        job, 14.0, summary, [*rows, {"num_updates": 301, "perf/updates_per_second": 1306.2}], 200
    )
    assert resumed["duration"] == f"0:05 {lasted} 1306 updates/s since update 200"


@pytest.mark.parametrize(("num", "text"), [(1, "1 update"), (2, "2 updates")])
def test_one_update_is_no_updates(num: int, text: str) -> None:
    assert result_text(TrainState(num_updates=num), num, []) == text


@pytest.mark.parametrize("name", ["lion", "lookahead_lion", "nadamw", "sgdw"])
def test_the_notes_of_an_optimizer_are_no_settings(name: str) -> None:
    optimizer = create_optimizer_v2([torch.nn.Parameter(torch.ones(2, 2))], opt=name, lr=0.1)
    [group] = optimizer.param_groups
    shown = [field for field in group if field in arguments_of(optimizer)]
    assert {"lr", "weight_decay"} <= {*shown}
    assert "max_lr_snapshot" in group
    assert "max_lr_snapshot" not in shown


def test_the_last_value_is_told_from_the_best_one() -> None:
    state = TrainState(num_updates=9, best={"metric": "val/loss", "value": 1234568.95, "num_updates": 4})
    rows = [{"num_updates": 9, "val/loss": 1234568.99}]
    shown = "9 updates, val/loss 1234568.99, best 1234568.95 at update 4"
    assert result_text(state, 9, rows) == shown
