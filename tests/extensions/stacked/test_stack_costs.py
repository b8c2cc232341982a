"""What the lanes of a stack share, so that a lane costs little; counted."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.extensions.stacked.runs import execute_stack
from hydrant.installation import commit
from hydrant.runs.execute import execute
from hydrant.runs.folder import RunFolder, RunStatus
from hydrant.runs.job import Job

DIGITS = ("tracker=local", "data=digits", "model=mlp", "optimizer=adamw", "scheduler=cosine", "task=classification",
          "duration=4", "eval_every=null")  # fmt: skip
CHOICES = {
    "data": "digits",
    "optimizer": "adamw",
    "scheduler": "cosine",
    "model": "mlp",
    "task": "classification",
}


def job(folder: Path, *words: str) -> Job:
    return Job(check(compose([*DIGITS, *words])), folder, CHOICES, {}, words, None)


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Record the first arguments of the calls of a function."""
    calls, function = list[Any](), getattr(owner, name)

    def record(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments[0] if arguments else named)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, record)
    return calls


@pytest.fixture
def lanes(tmp_path: Path) -> Callable[[int], list[Job]]:
    """Jobs with two learning rates."""
    return lambda count: [
        job(tmp_path / f"{count}_{n}", f"seed={n}", f"optimizer.lr={(1 + n % 2) * 1e-3}")
        for n in range(count)
    ]


@pytest.mark.slow
def test_more_lanes_start_no_more_processes_and_groups(
    lanes: Callable[[int], list[Job]], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit()  # asks Git, once a process
    processes, groups = counted(monkeypatch, subprocess, "run"), counted(monkeypatch, dist, "new_group")
    counts = list[tuple[int, int]]()
    for count in (2, 6):
        results = execute_stack(lanes(count))
        assert [result.status for result in results] == [RunStatus.FINISHED] * count
        counts.append((len(processes), len(groups)))
        processes.clear()
        groups.clear()
    assert counts[0] == counts[1]
    assert counts[0][1] == 0


def test_a_lane_records_environment_of_a_run_alone(lanes: Callable[[int], list[Job]], tmp_path: Path) -> None:
    jobs, alone = lanes(2), job(tmp_path / "alone", "optimizer.lr=2e-3", "seed=1")
    execute_stack(jobs)
    execute(alone)
    lane, run = RunFolder(jobs[1].folder), RunFolder(alone.folder)
    assert lane.recorded["environment"] == run.recorded["environment"]
