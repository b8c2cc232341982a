"""Sweeps that are killed and continued by the same command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from marks import of_extension
from processes import LONG, wait_for
from repository import ROOT
from sweeps import started_runs
from training_runs import command, run_command

from hydrant.sweeps.plan import sweep_progress


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", *of_extension("local", "ray")])
def test_a_sweep_waits_for_jobs_that_still_save(launcher: str, workdir: Path) -> None:
    """Only the process of the sweep is killed: its jobs save and end, and the same command continues them at once."""
    words = (*LONG, "duration=2000", "name=study", "seed=0,1", f"hydra/launcher={launcher}")
    words += () if launcher == "basic" else ("hydra.launcher.num_jobs=2",)
    first = subprocess.Popen(command("-m", *words), cwd=workdir)
    wait_for(lambda: bool(started_runs(workdir / "multirun" / "study")), first)
    first.kill()
    first.wait()
    again = run_command("-m", *words, cwd=workdir)
    assert again.returncode == 0, again.stderr
    runs = sweep_progress(workdir / "multirun" / "study")
    assert [run.state for run in runs] == ["finished"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", *of_extension("local", "slurm")])
def test_a_sweep_killed_five_times_equals_one_that_was_not(
    launcher: str, workdir: Path, request: pytest.FixtureRequest
) -> None:
    if launcher == "slurm":
        request.getfixturevalue("slurm")
    script = [sys.executable, str(ROOT / "scripts" / "kill_sweep"), "--launcher", launcher]
    done = subprocess.run(
        [*script, "--output", "kills.json"], cwd=workdir, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(Path("kills.json").read_text())
    [swept] = report["sweeps"]
    assert (report["jobs"], swept["jobs"], swept["kills"]) == (24, 24, 5)
