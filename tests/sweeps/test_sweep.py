"""Running a sweep: a folder and a result for each job; failures and signals."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import wait_for
from run_folders import assert_same_state, rows, training, weights
from sweeps import SHORT, short_with_fault, sweep_table
from training_runs import Train, command, run_command

from hydrant import cli
from hydrant.sweeps.executors.base import Sequential, Unit, UnitsEnded


def test_each_job_equals_the_same_run_outside_of_the_sweep(train: Train, workdir: Path) -> None:
    """Also the last job, after others."""
    words = (*SHORT, "optimizer=nadam")
    study = workdir / "multirun" / "study"
    train("--multirun", *words, "precision=fp16,fp32", name="study")
    found = [(row["precision"], row["status"]) for row in sweep_table(study)]
    assert found == [("fp16", "finished"), ("fp32", "finished")]
    alone = train(*words, "precision=fp32", name="alone")
    [job] = [p for p in study.iterdir() if "precision-fp32" in p.name]
    assert rows(job) == rows(alone)
    assert_same_state(weights(job), weights(alone))
    assert_same_state(training(job), training(alone))


@pytest.mark.slow
def test_a_sweep_with_more_values_runs_only_the_new_jobs(tmp_path: Path) -> None:
    words, study = (*SHORT, "name=study"), tmp_path / "multirun" / "study"
    assert run_command("-m", *words, "precision=fp16,fp32", cwd=tmp_path).returncode == 0
    grown = run_command("-m", *words, "precision=fp16,fp32,bf16", cwd=tmp_path)
    assert grown.returncode == 0, grown.stderr
    assert (grown.stdout.count("already finished"), grown.stdout.count("update 0 of ")) == (2, 1)
    assert [row["status"] for row in sweep_table(study)] == ["finished"] * 3


@pytest.mark.slow
def test_a_failing_job_stops_no_other(tmp_path: Path) -> None:
    swept = run_command(
        "-m", *SHORT, "name=faulty", "optimizer=sgd", "optimizer.lr=1e30,0.1", "seed=0,1", cwd=tmp_path
    )
    assert swept.returncode == 1
    jobs = sweep_table(tmp_path / "multirun" / "faulty")
    assert sorted(job["status"] for job in jobs) == ["failed", "failed", "finished", "finished"]
    failed = [job for job in jobs if job["status"] == "failed"]
    assert all(float(job["optimizer.lr"]) == 1e30 and "NaN or infinite" in job["error"] for job in failed)
    assert "job 0: error: train/loss became NaN or infinite" in swept.stderr
    assert "multirun/faulty: 4 runs: 2 finished, 2 failed\n" in swept.stdout
    assert "Traceback" not in swept.stderr


@pytest.mark.slow
def test_jobs_that_die_or_are_refused_are_in_the_table_and_stop_no_other(tmp_path: Path) -> None:
    study, base = tmp_path / "multirun" / "study", (*short_with_fault(tmp_path), "name=study")
    swept = run_command(
        "-m", *base, "model.fault=killed,other,none", "hydra.sweeper.max_batch_size=1",
        "+hydra.job.env_set.FLAVOUR=other", cwd=tmp_path,
    )  # fmt: skip
    assert swept.returncode == 1
    jobs = {row["model.fault"]: row for row in sweep_table(study)}
    assert {fault: row["status"] for fault, row in jobs.items()} == {
        "killed": "failed", "other": "refused", "none": "finished",
    }  # fmt: skip
    assert "ended without a result: SIGKILL, usually because the memory" in jobs["killed"]["error"]
    assert "model: custom.model refuses it: not here" in jobs["other"]["error"]
    assert not list(study.glob("*other*"))
    assert "Error executing job" not in swept.stderr
    again = run_command("-m", *base, "model.fault=none", cwd=tmp_path)  # an earlier failure does not count
    assert again.returncode == 0
    assert {row["model.fault"]: row["status"] for row in sweep_table(study)}["killed"] == "failed"


@pytest.mark.slow
def test_a_damaged_run_is_in_the_table(tmp_path: Path) -> None:
    base = ("-m", *SHORT, "name=study", "seed=2,1")
    assert run_command(*base, cwd=tmp_path).returncode == 0
    first, second = sweep_table(tmp_path / "multirun" / "study")
    assert (first["seed"], second["seed"]) == ("2", "1")  # in the order of the jobs
    (tmp_path / "multirun" / "study" / first["run"] / "summary.json").write_text("")
    again = run_command(*base, cwd=tmp_path)
    assert again.returncode == 1
    assert "Traceback" not in again.stderr
    assert [row["status"] for row in sweep_table(tmp_path / "multirun" / "study")] == ["failed", "finished"]
    assert "summary.json is damaged" in sweep_table(tmp_path / "multirun" / "study")[0]["error"]


@pytest.mark.slow
def test_each_job_has_one_wandb_run(tmp_path: Path) -> None:
    swept = run_command(
        "-m", "duration=2", "optimizer=adamw,sgd", "scheduler=cosine,wsd", cwd=tmp_path, WANDB_MODE="offline"
    )
    assert swept.returncode == 0, swept.stderr
    jobs = [p.parent for p in (tmp_path / "multirun").rglob("summary.json")]
    runs = [json.loads((job / "summary.json").read_text())["wandb"] for job in jobs]
    assert len({run["id"] for run in runs}) == len(jobs) == 4
    for job, run in zip(jobs, runs, strict=True):
        assert [p.parent.name for p in job.rglob("run-*.wandb")] == [Path(run["path"]).name]


@pytest.mark.slow
def test_a_closed_pipe_stops_no_job(tmp_path: Path) -> None:
    line = shlex.join(command("-m", *SHORT, "name=study", "seed=0,1"))
    piped = ["bash", "-o", "pipefail", "-c", f"{line} | head -1"]
    swept = subprocess.run(piped, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (swept.returncode, swept.stderr) == (0, "")
    assert [row["status"] for row in sweep_table(tmp_path / "multirun" / "study")] == ["finished"] * 2


SLOW = """
import time
from pathlib import Path
from hydrant.trackers import NullTracker

class Slow(NullTracker):
    def finish(self, exit_status, summary):
        Path("ending").touch()
        time.sleep(3)
"""


@pytest.mark.slow
def test_a_signal_while_a_job_finishes_stops_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    words = (*SHORT, "name=study", "seed=0,1", "allow_targets=[slow]", "tracker._target_=slow.Slow")
    swept = subprocess.Popen(command("-m", *words), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    wait_for((tmp_path / "ending").exists, swept)
    swept.send_signal(signal.SIGTERM)
    output, _ = swept.communicate(timeout=60)
    assert swept.returncode == 143
    states = [row["status"] for row in sweep_table(tmp_path / "multirun" / "study")]
    assert states == ["finished", "not started"]
    assert re.search(r"^1 +not started", output, re.MULTILINE)


@pytest.mark.usefixtures("workdir")
def test_a_job_that_a_signal_ends_before_it_begins_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Sequential, units: list[Unit], __: object) -> UnitsEnded:
        signal.raise_signal(signal.SIGTERM)
        yield units[0], units[0].lost("its process ended without a result")

    monkeypatch.setattr(Sequential, "run", run)
    assert cli.main(["train", "-m", *SHORT, "name=study", "seed=0,1"]) == 143
    assert not Path("multirun/study/sweep.csv").exists()  # else the first has failed


def has_fork_server(pid: int) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.7])
def test_ctrl_c_while_a_sweep_starts_prints_one_line(tmp_path: Path, seconds: float) -> None:
    swept = subprocess.Popen(
        command("-m", *SHORT, "name=study", "seed=0,1"), cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: has_fork_server(swept.pid), swept)
    time.sleep(seconds)
    os.killpg(swept.pid, signal.SIGINT)  # as Ctrl-C in a terminal
    _, errors = swept.communicate(timeout=60)
    assert swept.returncode == 130
    ends = ("anything was started", "the first job")
    assert errors in [f"stopped by SIGINT before {what}\n" for what in ends]
    assert not (tmp_path / "multirun" / "study" / "sweep.csv").exists()
