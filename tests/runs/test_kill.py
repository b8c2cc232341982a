"""Runs that are killed with SIGKILL at a random update and continued with the same command."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marks import of_extension
from processes import wait_for_row
from repository import ROOT
from run_folders import assert_same_state, rows, saved_updates, summary, training, weights
from training_runs import Train, command, run_command

WORDS = ("tracker=local", "duration=400", "log_every=7", "eval_every=50", "save_every=10", "model.hidden=[32]",
       "model.dropout=0.3", "data.augment.max_shift=1", "scheduler.warmup=10%", "micro_batch_size=32")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", *of_extension("lamb")])
def test_a_killed_run_ends_like_a_whole_one(optimizer: str, train: Train, workdir: Path) -> None:
    whole = train(*WORDS, f"optimizer={optimizer}", name="whole")
    folder, kill_at = workdir / "outputs" / "killed", random.Random(os.urandom(8)).randrange(20, 350)
    process = subprocess.Popen(command(*WORDS, "name=killed", f"optimizer={optimizer}"), cwd=workdir)
    wait_for_row(folder, kill_at, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, f"finished before it could be killed at {kill_at}"
    assert summary(folder)["status"] == "running"
    last_saved = max(saved_updates(folder / "checkpoints"), default=0)
    again = run_command(*WORDS, "name=killed", f"optimizer={optimizer}", cwd=workdir)
    assert again.returncode == 0, again.stderr
    assert f"at update {last_saved}" in again.stdout
    assert rows(folder) == rows(whole)
    assert_same_state(weights(folder), weights(whole))
    assert_same_state(training(folder), training(whole))
    assert summary(folder)["best"] == summary(whole)["best"]


@pytest.mark.slow
def test_kills_on_ranks_and_with_compile(workdir: Path) -> None:
    script = ROOT / "scripts" / "kill_runs"
    arguments = ("--kills", "12", "--updates", "100", "--save-every", "10", "--variants", "2")
    done = subprocess.run(
        [sys.executable, str(script), *arguments, "--output", "kills.json"],
        cwd=workdir,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(Path("kills.json").read_text())
    assert report["kills"] == report["identical"] == 12
    for run in report["runs"]:
        in_background = run["run"].endswith("all")  # a checkpoint that is being written does not count
        assert run["most_updates_lost"] <= report["save_every"] * (2 if in_background else 1)
