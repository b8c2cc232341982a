"""Ranks save and stop when the process that started them is killed, and unlock the run folder. Real processes."""

import os
import subprocess
from pathlib import Path

import pytest
from faulty_model import TORCHRUN, TWO_RANKS
from processes import descendants, is_alive, wait_for, wait_for_row, wait_until_gone
from repository import ROOT
from run_folders import summary
from training_runs import command, run_command

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
    assert list(temporary.glob("hydrant-ranks-*"))
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
    # It starts the ranks.
    wait_for(lambda: bool(list(temporary.glob("hydrant-ranks-*/stderr-1.log"))), process)
    ranks = list(descendants(process.pid))
    process.kill()
    process.wait()
    wait_until_gone(ranks, 60)
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert not [path for path in left if b"PlantedPlanted" in path.read_bytes()]


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
