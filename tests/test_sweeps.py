"""Sweeps that are started again: what is refused, skipped, run; the ready grids; kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm as one_node
import yaml
from checks import ROOT, command, run_command, summary
from killing import differing, kill
from omegaconf import OmegaConf
from processes import LONG, wait_for, wait_for_row

from hydrant import cli
from hydrant.admission import trained_elsewhere
from hydrant.config import check, combinations, compose
from hydrant.locking import wait_until_free
from hydrant.runs import Plan, Planned, write_plan
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


def run_in(folder: Path, *words: str, **told: Any) -> Path:
    """A run folder as a job with these words leaves it; what its summary tells."""
    (folder / ".hydra").mkdir(parents=True)
    config = check(compose(words))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(list(words)))
    (folder / "summary.json").write_text(json.dumps({"num_updates": 4, **told}))
    return folder


def test_keys_that_decide_nothing_name_no_other_runs(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only those that the sweep is over; the first line tells what is known and what else lies there."""
    study = workdir / "multirun" / "study"
    run_in(study / "seed-0", "seed=0", "name=study", status="finished")
    for tracker in ("local", "tensorboard"):
        run_in(study / f"seed-0_tracker-{tracker}", "seed=0", "name=study", status="finished")
    write_plan(study, Plan(0.0, [Planned(study / f"seed-{n}", [f"seed={n}"]) for n in range(3)]))
    base = ("train", "-m", "name=study", "seed=0")
    assert cli.main([*base, "tracker=local", "keep_last=5", "resume_strict=false"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "multirun/study: 1 job: 1 finished; 2 other runs in this folder; "
        "of the command before, 2 never began and are no longer planned"
    )
    assert cli.main([*base, "tracker=local,tensorboard"]) == 0
    assert (
        capsys.readouterr().out.splitlines()[0].startswith("multirun/study: 2 jobs: 2 finished; 1 other run")
    )


def test_what_another_machine_trains_is_left_to_it(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As long as its record moves."""
    run = run_in(workdir / "multirun" / "study" / "seed-0", "seed=0", status="running", host="node7")
    assert cli.main(["train", "-m", "name=study", "seed=0,1"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        r"name: multirun/study/seed-0 is of a run on node7, whose record moved \d s ago; wait", told
    )
    assert told.endswith("[job: name=study seed=0; 1 of 2 cannot run]")
    os.utime(run / "summary.json", (0, time.time() - 1000))
    assert trained_elsewhere(run) == ""
    assert "moved 1000 s ago: taken for lost, it goes on here" in capsys.readouterr().err
    (run / "metrics.jsonl").touch()
    assert "node7" in trained_elsewhere(run)


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


def test_a_sweep_that_was_killed_is_the_one_that_was_not(
    workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`scripts/kill_sweep` does it with 24 jobs, again and again."""
    words = ("tracker=local", "duration=400", "log_every=10", "eval_every=200", "save_every=50", "model.hidden=[16]",
             "limit_val_samples=64")  # fmt: skip
    study = workdir / "multirun" / "study"
    swept = ("-m", *words, "name=study", "seed=0,1", "hydra.sweep.subdir=seed-${seed}")
    process = subprocess.Popen(command(*swept), stdout=subprocess.DEVNULL)
    wait_for_row(study / "seed-0", 100, process)
    kill([process.pid])
    process.wait()
    wait_until_free(study / "seed-0")
    assert [standing.state for standing in standings(study)] == ["killed", "not started"]
    assert cli.main(["train", *swept]) == 0
    assert capfd.readouterr().out.startswith("multirun/study: 2 jobs: 1 begun before, 1 new\n")
    assert [standing.state for standing in standings(study)] == ["finished"] * 2
    assert cli.main(["train", *words, "name=alone", "seed=0"]) == 0
    assert differing(workdir / "outputs" / "alone", study / "seed-0") == []


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
