"""Runs that are killed with SIGKILL at a random update and continued with the same command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT


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
