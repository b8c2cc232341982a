"""Sweeps that are started again: what is refused, skipped, run; the ready grids; kills."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm as one_node
import yaml
from checks import ROOT, command, run_command, summary
from killing import kill
from omegaconf import OmegaConf
from processes import LONG, wait_for

from hydrant import cli
from hydrant.config import check, combinations, compose
from hydrant.standing import standings

GRIDS = sorted(
    p.stem for p in (ROOT / "conf" / "sweep").glob("*.yaml") if "/hydra/sweeper" not in p.read_text()
)


def test_a_changed_config_is_refused_before_anything_starts(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two jobs, the second one's folder holds a run of a shorter duration."""
    other = workdir / "multirun" / "study" / "optimizer-sgd_seed-1"
    other.mkdir(parents=True)
    config = check(compose(["optimizer=sgd", "seed=1", "duration=50"]))
    (other / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    words = ("sweep=seeds", "seed=0,1", "optimizer=sgd", "name=study", "hydra/launcher=local")
    assert cli.main(["train", "-m", *words]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "optimizer-sgd_seed-1 holds a run of another config: duration (50 there, '60ep' here)" in told
    assert told.endswith("[job: seed=1 optimizer=sgd name=study; 1 of 2 cannot run]")
    assert [path.name for path in other.parent.iterdir()] == [other.name]


@pytest.mark.parametrize("grid", GRIDS)
def test_every_job_of_a_ready_grid_can_be(grid: str) -> None:
    text = (ROOT / "conf" / "sweep" / f"{grid}.yaml").read_text()
    package, question = text.splitlines()[:2]
    assert package == "# @package _global_"
    assert re.fullmatch(rf"# .*[?.] {{4}}python train\.py --multirun sweep={grid}", question)
    params = yaml.safe_load(text)["hydra"]["sweeper"]["params"]
    jobs = combinations([f"{key}={values}" for key, values in params.items()])
    configs = [check(compose(job)) for job in jobs]
    assert len({json.dumps(config) for config in configs}) == len(jobs) > 1


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
def test_a_ready_grid_runs(grid: str, tmp_path: Path) -> None:
    words = (
        "tracker=local",
        "duration=2",
        "log_every=1",
        "eval_every=2",
        "save_every=2",
        "model.hidden=[16]",
    )
    swept = run_command("-m", f"sweep={grid}", *words, "name=grid", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    found = standings(tmp_path / "multirun" / "grid")
    assert {standing.state for standing in found} == {"finished"}
    assert all("sweep" not in standing.choices for standing in found)


def run_of(study: Path) -> list[Path]:
    return sorted(path.parent for path in study.glob("*/metrics.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "local", "joblib", "ray"])
def test_what_still_saves_is_waited_for(launcher: str, workdir: Path) -> None:
    """The process of a sweep is killed alone: its jobs save and end, and the same command, at once, continues them."""
    words = (*LONG, "duration=2000", "name=study", "seed=0,1", f"hydra/launcher={launcher}")
    words += () if launcher == "basic" else ("hydra.launcher.num_jobs=2",)
    first = subprocess.Popen(command("-m", *words), cwd=workdir)
    wait_for(lambda: bool(run_of(workdir / "multirun" / "study")), first)
    first.kill()
    first.wait()
    again = run_command("-m", *words, cwd=workdir)
    assert again.returncode == 0, again.stderr
    found = standings(workdir / "multirun" / "study")
    assert [standing.state for standing in found] == ["finished"] * 2


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from one_node.running(tmp_path_factory.mktemp("slurm"))


@pytest.mark.slow
def test_jobs_that_slurm_still_has_are_not_submitted_again(slurm: None, workdir: Path) -> None:
    words = (*LONG, "name=study", "seed=0,1,2", "hydra/launcher=slurm", "hydra.launcher.num_jobs=1",
             "hydra.sweep.subdir=seed-${seed}")  # fmt: skip
    study = workdir / "multirun" / "study"
    first = subprocess.Popen(command("-m", *words), cwd=workdir)
    wait_for(lambda: bool(run_of(study)), first)
    kill([first.pid])
    first.wait()
    assert [standing.state for standing in standings(study)] == ["running", "not started", "not started"]
    other = run_command("-m", *words, "seed=1", "optimizer.lr=0.5", cwd=workdir)
    assert other.returncode == 2
    assert "still runs seed-1 with another config (optimizer.lr (0.001 there, 0.5 here))" in other.stderr
    with Path("said").open("w") as said:
        again = subprocess.Popen(command("-m", *words), cwd=workdir, stdout=said)
    wait_for(lambda: Path("said").read_text().count("which goes on") == 3, again)
    listed = subprocess.run(["squeue", "-h", "-r"], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 3
    again.send_signal(signal.SIGINT)
    again.wait(timeout=120)
    assert again.returncode == 130
    assert [summary(run)["status"] for run in run_of(study)] == ["preempted"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib", "slurm"])
def test_24_jobs_killed_five_times(launcher: str, workdir: Path, request: pytest.FixtureRequest) -> None:
    if launcher == "slurm":
        request.getfixturevalue("slurm")
    script = [sys.executable, str(ROOT / "scripts" / "kill_sweep"), "--launcher", launcher]
    done = subprocess.run(
        [*script, "--output", "kills.json"], cwd=workdir, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(Path("kills.json").read_text())
    [swept] = found["sweeps"]
    assert (found["jobs"], swept["jobs"], swept["kills"]) == (24, 24, 5)
