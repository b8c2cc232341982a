"""A job is one process group, one run folder and one tracker run with every launcher. On real clusters, on CPUs."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from marks import of_extension
from processes import LONG, wait_for
from run_folders import assert_close_rows, rows, summary
from sweeps import FOUR_UPDATES, LAUNCHERS, sweep_table
from training_runs import command, run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("launcher", ["basic", *of_extension(*[*LAUNCHERS][1:])]),
]


@pytest.fixture
def options(launcher: str, request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The words that choose a launcher, whose cluster runs."""
    if launcher == "slurm":
        request.getfixturevalue("slurm")
    return LAUNCHERS[launcher]


def status_by_lr(study: Path) -> dict[str, str]:
    return {row["optimizer.lr"]: row["status"] for row in sweep_table(study)}


def test_a_job_of_two_ranks_equals_a_run_of_one(
    launcher: str, options: tuple[str, ...], single_run: Path, workdir: Path
) -> None:
    words = ("-m", *options, *FOUR_UPDATES, "name=study", "optimizer.lr=0.1,1e30", "parallel.num_processes=2")
    swept = run_command(*words, cwd=workdir, WANDB_MODE="offline")
    assert swept.returncode == 1
    assert "train/loss became NaN or infinite" in swept.stderr.partition("job 1: error: ")[2], swept.stderr
    of_job = r"^finished: 4 updates, " if launcher == "basic" else r"^job 0: lr-0.1\S* has finished: "
    assert re.search(rf"{of_job}val/\w+ [\d.]+, best [\d.]+", swept.stdout, re.MULTILINE)
    study = workdir / "multirun" / "study"
    assert status_by_lr(study) == {"0.1": "finished", "1e+30": "failed"}
    (good,) = (study / row["run"] for row in sweep_table(study) if row["optimizer.lr"] == "0.1")
    assert_close_rows(single_run, good)
    assert [path.parent.name for path in good.rglob("run-*.wandb")] == [
        Path(summary(good)["wandb"]["path"]).name
    ]
    assert len([path for path in study.iterdir() if path.is_dir() and path.name[0] != "."]) == 2
    # Again: the finished job is skipped, the failed one runs.
    again = run_command(*words, cwd=workdir, WANDB_MODE="offline")
    assert again.returncode == 1
    assert status_by_lr(study) == {"0.1": "finished", "1e+30": "failed"}
    assert len(list(good.rglob("run-*.wandb"))) == 1


def test_ctrl_c_saves_running_jobs_and_starts_no_others(options: tuple[str, ...], workdir: Path) -> None:
    swept = subprocess.Popen(
        command("-m", *options, *LONG, "name=study", "seed=0,1,2"), cwd=workdir, start_new_session=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    study = workdir / "multirun" / "study"
    wait_for(lambda: any(study.glob("*/metrics.jsonl")), swept)
    os.killpg(swept.pid, signal.SIGINT)  # as Ctrl-C in a terminal
    output, _ = swept.communicate(timeout=120)
    assert swept.returncode == 130
    begun = [path.parent for path in study.glob("*/summary.json")]
    assert begun
    assert {summary(run)["status"] for run in begun} == {"preempted"}
    # A job that had just started has nothing to save.
    assert not any(file.parent not in begun and rows(file.parent) for file in study.glob("*/metrics.jsonl"))
    assert f" {len(begun)} preempted\n" in output


def test_a_study_keeps_its_budget_and_equals_that_of_the_other_launchers(
    launcher: str, options: tuple[str, ...], workdir: Path
) -> None:
    words = ("-m", "hydra/sweeper=study", "hydra.sweeper.tune=['optimizer.lr=1e-3,1e-1']", "optimizer=adamw,sgd",
             "hydra.sweeper.budget=14runs", *FOUR_UPDATES[:-1], "best.metric=val/loss", "name=study",
             *options)  # fmt: skip
    studied = run_command(*words, cwd=workdir, WANDB_MODE="disabled", OMP_NUM_THREADS="1")
    assert studied.returncode == 0, studied.stderr
    study = workdir / "multirun" / "study"
    record = json.loads((study / "study.json").read_text())
    assert record["is_running"] is False
    assert 12 <= record["cost"]["runs"] <= 14
    assert record["verdict"]["sentence"] in studied.stdout
    assert {row["status"] for row in sweep_table(study)} == {"finished"}
    best = {row["name"]: row["best"]["optimizer.lr"] for row in record["contenders"]}
    assert best == {"adamw": "0.1", "sgd": "0.1"}
    assert all(len(row["results"]) >= 4 for row in record["contenders"])
