"""`kill -9` at a random update, and the same command again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checks import ROOT, assert_same_state, command, rows, run_command, summary, training, weights

from hydrant.errors import ConfigError
from hydrant.locking import exclusive

RUN = ("tracker=local", "duration=400", "log_every=7", "eval_every=50", "save_every=10", "model.hidden=[32]",
       "model.dropout=0.3", "data.augment.max_shift=1", "scheduler.warmup=10%", "micro_batch_size=32")  # fmt: skip


def wait_for_update(folder: Path, num_updates: int, process: subprocess.Popen[bytes]) -> None:
    """Until a row at or past `num_updates` is written."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "metrics.jsonl").exists():
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            if len(lines) > 1 and rows_at_least(lines[-1], num_updates):
                return
        time.sleep(0.002)


def rows_at_least(line: str, num_updates: int) -> bool:
    return line.startswith('{"num_updates": ') and int(line[16:].split(",")[0]) >= num_updates


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb"])
def test_ends_as_if_never_killed(optimizer: str, train: Callable[..., Path], workdir: Path) -> None:
    whole = train(*RUN, f"optimizer={optimizer}", name="whole")
    folder, kill_at = workdir / "outputs" / "killed", random.Random(os.urandom(8)).randrange(20, 350)
    process = subprocess.Popen(command(*RUN, "name=killed", f"optimizer={optimizer}"), cwd=workdir)
    wait_for_update(folder, kill_at, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, f"finished before it could be killed at {kill_at}"
    assert summary(folder)["status"] == "running"
    reached = max(int(p.name[7:]) for p in (folder / "checkpoints").glob("update_*"))
    print(f"killed after {kill_at}, continues at {reached}")

    again = run_command(*RUN, "name=killed", f"optimizer={optimizer}", cwd=workdir)
    assert again.returncode == 0, again.stderr
    assert f"at update {reached}" in again.stdout
    assert rows(folder) == rows(whole)
    assert_same_state(weights(folder), weights(whole))
    assert_same_state(training(folder), training(whole))
    assert summary(folder)["best"] == summary(whole)["best"]


def test_a_dozen_kills_over_ranks_and_compile(workdir: Path) -> None:
    script = ROOT / "scripts" / "kill_runs"
    asked = ("--kills", "12", "--updates", "100", "--save-every", "10", "--variants", "2")
    done = subprocess.run(
        [sys.executable, str(script), *asked, "--output", "kills.json"],
        cwd=workdir,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(Path("kills.json").read_text())
    assert found["kills"] == found["identical"] == 12
    for run in found["runs"]:
        in_background = run["run"].endswith("all")  # one that is being written does not count
        assert run["most_updates_lost"] <= found["save_every"] * (2 if in_background else 1)


def first_job(sweep: Path, process: subprocess.Popen[bytes]) -> Path:
    """The folder of a sweep's first job, once it is under way."""
    deadline = time.monotonic() + 120
    while not list(sweep.glob("*/metrics.jsonl")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [job] = (p for p in sweep.iterdir() if p.is_dir())
    wait_for_update(job, 14, process)
    return job


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        (signal.SIGINT, 130),
        *(
            pytest.param(*way, marks=pytest.mark.slow)
            for way in ((signal.SIGTERM, 143), (signal.SIGUSR1, 138))
        ),
    ],
)
def test_a_signal_leaves_a_resumable_run(signum: signal.Signals, status: int, workdir: Path) -> None:
    folder = workdir / "outputs" / "stopped"
    process = subprocess.Popen(
        command(*RUN, "name=stopped", "duration=20000"), cwd=workdir, stderr=subprocess.PIPE
    )
    wait_for_update(folder, 30, process)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    reached = summary(folder)["num_updates"]
    told = f"stopped by {signum.name} after update {reached}; the same command continues it"
    assert errors.decode().strip().splitlines()[-1] == told
    assert summary(folder)["status"] == "preempted"
    assert (folder / "checkpoints" / f"update_{summary(folder)['num_updates']:08d}").is_dir()


@pytest.mark.slow
def test_ctrl_c_stops_a_sweep_after_saving_its_job(workdir: Path) -> None:
    process = subprocess.Popen(
        command("-m", *RUN, "name=stopped", "duration=20000", "seed=0,1"), cwd=workdir, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    job = first_job(workdir / "multirun" / "stopped", process)
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert summary(job)["status"] == "preempted"
    assert [p for p in job.parent.iterdir() if p.is_dir()] == [job]
    assert b"preempted" in output


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_job_ends_with_its_sweep(workdir: Path) -> None:
    """A sweep that is killed leaves no job running behind its back."""
    process = subprocess.Popen(command("-m", *RUN, "name=killed", "duration=20000", "seed=0,1"), cwd=workdir)
    job = first_job(workdir / "multirun" / "killed", process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while summary(job)["status"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert summary(job)["status"] == "preempted"


def test_a_fork_does_not_hold_the_run_folder(tmp_path: Path) -> None:
    """A worker that outlives its killed run for a while must not stop the next one."""
    with exclusive(tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        with pytest.raises(ConfigError, match="another process is at work"), exclusive(tmp_path):
            pass
    try:
        time.sleep(0.1)
        with exclusive(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.slow
def test_two_processes_never_share_a_run_folder(workdir: Path) -> None:
    first = subprocess.Popen(command(*RUN, "name=shared", "duration=20000"), cwd=workdir)
    wait_for_update(workdir / "outputs" / "shared", 7, first)
    second = run_command(*RUN, "name=shared", "duration=20000", cwd=workdir)
    first.kill()
    first.wait()
    assert second.returncode == 2
    assert "name: another process is at work in" in second.stderr.splitlines()[-1]
    third = run_command(
        *RUN, "name=shared", "duration=20000", "resume=null", cwd=workdir
    )  # the lock is free again
    assert "holds a run; resume=auto continues it" in third.stderr
