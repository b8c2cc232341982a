"""Ranks save and stop when the process that started them is killed, and unlock the run folder. Real processes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from faulty_model import TORCHRUN, TWO_RANKS
from processes import descendants, is_alive, wait_for, wait_for_row, wait_until_gone
from repository import ROOT
from run_folders import summary
from training_runs import command, run_command

from hydrant.runs.elastic import _hand_over, take_job
from hydrant.runs.job import Job

pytestmark = pytest.mark.usefixtures("without_gpu")  # more ranks than GPUs

WORDS = ("name=run", "tracker=local", "model.hidden=[16]", "log_every=20", "save_every=20")


@pytest.mark.slow
def test_ranks_end_with_the_launching_process_and_unlock_the_folder(workdir: Path) -> None:
    words = (*WORDS, *TWO_RANKS, "eval_every=null")
    (temporary := workdir / "temporary").mkdir()
    variables = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command(*words, "duration=100000"), cwd=workdir, env=variables)
    folder = workdir / "outputs" / "run"
    wait_for_row(folder, 40, process)
    second = run_command(*words, "duration=100000", cwd=workdir)
    assert second.returncode == 2
    assert "error: name: another process is at work in " in second.stderr.splitlines()[-1]
    assert process.poll() is None
    ranks = list(descendants(process.pid))
    assert len(ranks) >= 2
    assert list(temporary.glob("hydrant-ranks-*/pids.json"))
    process.kill()
    process.wait()
    wait_until_gone(ranks, 30)
    assert summary(folder)["status"] == "preempted"  # the ranks have saved
    again = run_command(
        *words, f"duration={summary(folder)['num_updates'] + 1}", "resume_strict=false", cwd=workdir
    )
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_a_launching_process_that_is_killed_early_leaves_no_secret(workdir: Path) -> None:
    """Its ranks, which may have no job yet, end too."""
    (temporary := workdir / "temporary").mkdir()
    process = subprocess.Popen(
        command(*WORDS, *TWO_RANKS, "claim='hf_token=PlantedPlanted'"),
        cwd=workdir,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    wait_for(lambda: bool(list(temporary.glob("hydrant-ranks-*/logs/*"))), process)  # it starts the ranks
    ranks = list(descendants(process.pid))
    process.kill()
    process.wait()
    wait_until_gone(ranks, 60)
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert not [path for path in left if b"PlantedPlanted" in path.read_bytes()]


def test_each_rank_takes_the_job_from_a_pipe(tmp_path: Path) -> None:
    config = {"parallel": {"num_processes": 3}, "notes": "x" * 100_000}  # more than a pipe holds at once
    job = Job(config, tmp_path, {}, {}, [], None)
    threads = threading.active_count()
    with _hand_over(job, tmp_path):
        assert all(path.is_fifo() and path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
        assert [take_job(tmp_path, rank) for rank in (0, 2)] == [job, job]
    assert take_job(tmp_path / "removed", 0) is None
    deadline = time.monotonic() + 30
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads  # also the one whose rank never came has ended


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["torchrun", "sweep"])
def test_ranks_end_with_torchrun_and_with_a_sweep(parent: str, workdir: Path) -> None:
    words = [*WORDS, "duration=100000"]
    arguments = [*TORCHRUN, str(ROOT / "train.py"), *words]
    folder = workdir / "outputs" / "run"
    if parent == "sweep":
        arguments = command("--multirun", *words, *TWO_RANKS, "seed=0", "hydra.sweep.subdir=job")
        folder = workdir / "multirun" / "run" / "job"
    process = subprocess.Popen(arguments, cwd=workdir, stdout=subprocess.DEVNULL)
    wait_for_row(folder, 40, process)
    ranks = [pid for pid in descendants(process.pid) if is_alive(pid)]
    process.kill()
    process.wait()
    wait_until_gone(ranks, 90)
    assert summary(folder)["status"] == "preempted"
