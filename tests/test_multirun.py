"""Sweeps: a folder and a result a job, no job touching another, failures told and counted."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from checks import assert_same_state, command, rows, run_command, training, weights

SHORT = ("tracker=local", "duration=8", "log_every=2", "eval_every=4", "save_every=4", "model.hidden=[16]",
         "data.augment.max_shift=1")  # fmt: skip


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_job_equals_the_same_run_alone(tmp_path: Path) -> None:
    """The last one, too, though others ran before it; and a sweep that has grown runs what is new."""
    words = (*SHORT, "optimizer=lamb")
    study = tmp_path / "multirun" / "study"
    swept = run_command("--multirun", *words, "name=study", "precision=fp16,fp32", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    assert [(row["precision"], row["status"]) for row in table(study)] == [
        ("fp16", "finished"), ("fp32", "finished"),
    ]  # fmt: skip
    alone = run_command(*words, "name=alone", "precision=fp32", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    [job] = [p for p in study.iterdir() if "precision-fp32" in p.name]
    assert rows(job) == rows(tmp_path / "outputs" / "alone")
    assert_same_state(weights(job), weights(tmp_path / "outputs" / "alone"))
    assert_same_state(training(job), training(tmp_path / "outputs" / "alone"))
    grown = run_command("-m", *words, "name=study", "precision=fp16,fp32,bf16", cwd=tmp_path)
    assert grown.returncode == 0, grown.stderr
    assert (grown.stdout.count("already finished"), grown.stdout.count("run folder")) == (2, 1)
    assert [row["status"] for row in table(study)] == ["finished"] * 3


@pytest.mark.slow
def test_a_failing_job_stops_no_other(tmp_path: Path) -> None:
    swept = run_command(
        "-m", *SHORT, "name=faulty", "optimizer=sgd", "optimizer.lr=1e30,0.1", "seed=0,1", cwd=tmp_path
    )
    assert swept.returncode == 1
    jobs = table(tmp_path / "multirun" / "faulty")
    assert sorted(job["status"] for job in jobs) == ["failed", "failed", "finished", "finished"]
    failed = [job for job in jobs if job["status"] == "failed"]
    assert all(float(job["optimizer.lr"]) == 1e30 and "NaN or infinite" in job["error"] for job in failed)
    assert "job 0: error: train/loss became NaN or infinite" in swept.stderr
    said, finished = swept.stderr.index("job 0: error"), swept.stdout.index("multirun/faulty: 4 runs")
    assert said >= 0
    assert swept.stdout[finished:].count("failed") == 2
    assert "Traceback" not in swept.stderr


PART = """
import os
from hydrant.models import MLP

def model(*, input_shape, num_classes, hidden, dropout, fate):
    with open("built", "a") as file:
        print(os.getpid(), os.environ.get("FLAVOUR"), file=file)
    if fate == "odd":
        class Odd(Exception): ...
        raise Odd("strange")
    if fate == os.environ.get("FLAVOUR"):
        raise ValueError("not here")
    if fate == "killed":
        os.kill(os.getpid(), 9)
    return MLP(input_shape=input_shape, num_classes=num_classes, hidden=hidden, dropout=dropout)
"""


def own_parts(folder: Path) -> tuple[str, ...]:
    (folder / "own.py").write_text(PART)
    return (*SHORT, "allow_targets=[own]", "model._target_=own.model", "+model.fate=good")


@pytest.mark.slow
def test_jobs_are_checked_once_for_all_seeds_and_have_their_environment(tmp_path: Path) -> None:
    swept = run_command(
        "-m",
        *own_parts(tmp_path),
        "name=study",
        "seed=0,1,2",
        "+hydra.job.env_set.FLAVOUR=vanilla",
        cwd=tmp_path,
    )
    assert swept.returncode == 0, swept.stderr
    built = [line.split() for line in (tmp_path / "built").read_text().splitlines()]
    assert len(built) == 1 + 3
    assert [flavour for _, flavour in built[1:]] == ["vanilla"] * 3


@pytest.mark.slow
def test_a_part_may_raise_anything(tmp_path: Path) -> None:
    refused = run_command("-m", *own_parts(tmp_path), "model.fate=good,odd", cwd=tmp_path)
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert "model: own.model refuses it: Odd: strange (at own.py:10) [job: " in last
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "multirun").exists()


@pytest.mark.slow
def test_jobs_that_die_or_are_refused_are_in_the_table_and_stop_no_other(tmp_path: Path) -> None:
    study, base = tmp_path / "multirun" / "study", (*own_parts(tmp_path), "name=study")
    swept = run_command(
        "-m", *base, "model.fate=killed,other,good", "hydra.sweeper.max_batch_size=1",
        "+hydra.job.env_set.FLAVOUR=other", cwd=tmp_path,
    )  # fmt: skip
    assert swept.returncode == 1
    found = {row["model.fate"]: row for row in table(study)}
    assert {fate: row["status"] for fate, row in found.items()} == {
        "killed": "failed", "other": "refused", "good": "finished",
    }  # fmt: skip
    assert found["killed"]["error"] == "the process ended by SIGKILL without a result"
    assert "model: own.model refuses it: not here" in found["other"]["error"]
    assert not list(study.glob("*other*"))
    assert "Error executing job" not in swept.stderr
    again = run_command("-m", *base, "model.fate=good", cwd=tmp_path)  # an old failure is not today's
    assert again.returncode == 0
    assert {row["model.fate"]: row["status"] for row in table(study)}["killed"] == "failed"


@pytest.mark.slow
def test_a_damaged_run_is_a_line_of_the_table(tmp_path: Path) -> None:
    base = ("-m", *SHORT, "name=study", "seed=2,1")
    assert run_command(*base, cwd=tmp_path).returncode == 0
    first, second = table(tmp_path / "multirun" / "study")
    assert (first["seed"], second["seed"]) == ("2", "1")  # in the order of the jobs
    (tmp_path / "multirun" / "study" / first["run"] / "summary.json").write_text("")
    again = run_command(*base, cwd=tmp_path)
    assert again.returncode == 1
    assert "Traceback" not in again.stderr
    assert [row["status"] for row in table(tmp_path / "multirun" / "study")] == ["failed", "finished"]
    assert "summary.json is damaged" in table(tmp_path / "multirun" / "study")[0]["error"]


@pytest.mark.slow
def test_hydra_s_own_values_and_folders_work_in_a_sweep(tmp_path: Path) -> None:
    swept = run_command(
        "-m", *SHORT, "name=study", "optimizer=adamw,sgd", "seed=${hydra:job.num}", "scheduler=glob(wsd*)",
        "hydra.sweep.subdir=${hydra:job.num}/deep", cwd=tmp_path,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    assert [row["status"] for row in table(tmp_path / "multirun" / "study")] == ["finished"] * 2
    configs = [tmp_path / "multirun" / "study" / str(n) / "deep" / "config.yaml" for n in (0, 1)]
    assert [yaml.safe_load(config.read_text())["seed"] for config in configs] == [0, 1]


@pytest.mark.slow
def test_a_reader_that_went_away_stops_no_job(tmp_path: Path) -> None:
    line = shlex.join(command("-m", *SHORT, "name=study", "seed=0,1"))
    swept = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{line} | head -1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (swept.returncode, swept.stderr) == (0, "")
    assert [row["status"] for row in table(tmp_path / "multirun" / "study")] == ["finished"] * 2


SLOW = """
import time
from pathlib import Path
from hydrant.trackers.base import NullTracker

class Slow(NullTracker):
    def finish(self, exit_status, summary):
        Path("ending").touch()
        time.sleep(3)
"""


@pytest.mark.slow
def test_a_request_to_stop_that_comes_while_a_job_ends_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    swept = subprocess.Popen(
        command("-m", *SHORT, "name=study", "seed=0,1", "allow_targets=[slow]", "tracker._target_=slow.Slow"),
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(tmp_path / "ending", swept)
    swept.send_signal(signal.SIGTERM)
    output, _ = swept.communicate(timeout=60)
    assert swept.returncode == 143
    assert [row["status"] for row in table(tmp_path / "multirun" / "study")] == ["finished", "not started"]
    assert "seed=1  not started" in output


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.7])
def test_ctrl_c_while_a_sweep_starts_is_told_in_a_line(tmp_path: Path, seconds: float) -> None:
    swept = subprocess.Popen(
        command("-m", *SHORT, "name=study", "seed=0,1"), cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_fork_server(swept)
    time.sleep(seconds)
    os.killpg(swept.pid, signal.SIGINT)  # as the terminal does
    _, errors = swept.communicate(timeout=60)
    assert swept.returncode == 130
    assert errors == "stopped by a signal before the first job\n"
    assert not (tmp_path / "multirun" / "study" / "sweep.csv").exists()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_fork_server(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not any(
        b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children.read_text().split()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_sweep_with_an_impossible_job_is_refused_whole(tmp_path: Path) -> None:
    swept = run_command("-m", *SHORT, "optimizer=adamw,adamm", cwd=tmp_path)
    assert swept.returncode == 2
    assert "did you mean" in swept.stderr.splitlines()[-1]
    impossible = run_command("-m", *SHORT, "precision=fp32", "optimizer.lr=0.1,high", cwd=tmp_path)
    assert impossible.returncode == 2
    assert "optimizer.lr" in impossible.stderr.splitlines()[-1]
    assert not (tmp_path / "multirun").exists()


@pytest.mark.slow
def test_one_wandb_run_a_job(tmp_path: Path) -> None:
    swept = run_command(
        "-m", "duration=2", "optimizer=adamw,sgd", "scheduler=cosine,wsd", cwd=tmp_path, WANDB_MODE="offline"
    )
    assert swept.returncode == 0, swept.stderr
    jobs = [p.parent for p in (tmp_path / "multirun").rglob("summary.json")]
    runs = [json.loads((job / "summary.json").read_text())["wandb"] for job in jobs]
    assert len({run["id"] for run in runs}) == len(jobs) == 4
    for job, run in zip(jobs, runs, strict=True):
        assert [p.parent.name for p in job.rglob("run-*.wandb")] == [Path(run["path"]).name]
