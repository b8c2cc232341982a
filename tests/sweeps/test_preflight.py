"""What a sweep checks and prints before its first job."""

import gc
import json
import os
import re
import time
import tracemalloc
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.records import PlannedJob, SweepPlan
from hydrant.sweeps import grid
from hydrant.sweeps.plan import write_plan
from hydrant.sweeps.preflight import prepare_all, trained_elsewhere
from hydrant.training.prepare import build


def test_a_changed_config_is_refused_before_anything_starts(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of the second of two jobs holds a run of a shorter duration."""
    other = workdir / "multirun" / "study" / "optimizer-sgd_seed-1"  # as an earlier version named it
    write_run(other, "optimizer=sgd", "seed=1", "duration=50", status="running")
    (other / ".hydra" / "overrides.yaml").write_text("[optimizer=sgd, seed=1]")
    (other / "checkpoints" / "update_00000050").mkdir(parents=True)
    words = ("sweep=seeds", "seed=0,1", "optimizer=sgd", "name=study")
    assert cli.main(["train", "-m", *words]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "optimizer-sgd_seed-1 holds a run of another config: duration (50 there, '60ep' here)" in message
    assert "seed=1 optimizer=sgd name=study). Give " in message
    assert [path.name for path in other.parent.iterdir()] == [other.name]


def test_jobs_that_differ_in_numbers_are_checked_as_each_alone(workdir: Path) -> None:
    """One is prepared; of the others only the optimizers and schedules are made."""
    words = [["seed=1"], ["scheduler.warmup=2ep"], ["scheduler.warmup=-1"], ["scheduler=plateau"],
             ["scheduler=plateau", "scheduler.metric=val/nothing"], ["optimizer=sgd"],
             ["model.dropout=0.5"], ["duration=1"], ["eval_every=null", "patience=2"]]  # fmt: skip
    checked = [check(compose(["tracker=local", "model.hidden=[4]", *job])) for job in words]
    configs = [config | {"optimizer": config["optimizer"] | {"lr": lr}}
               for lr in (0.1, 0.2, -1.0, 1e300) for config in checked]  # fmt: skip
    alone = [str(prepare_all([config])[0]) for config in configs]
    assert [str(error) for error in prepare_all(configs)] == alone
    assert alone.count("None") >= 8
    assert len(set(alone)) >= 4


def test_preparing_is_shared_by_jobs_that_differ_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = list[float]()
    prepare = build.prepare

    def recorded(config: Mapping[str, Any], **options: Any) -> Any:
        prepared.append(config["optimizer"]["lr"])
        return prepare(config, **options)

    monkeypatch.setattr(build, "prepare", recorded)
    words = ["tracker=local", "model.hidden=[4]"]
    configs = [check(compose([*words, f"optimizer.lr={n / 100}"])) for n in range(1, 9)]
    assert prepare_all(configs) == [None] * 8
    assert prepared == [0.01]


@pytest.mark.slow
def test_one_prepared_job_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where jobs of different programs take turns: each plan holds its data."""
    plans, alive = list[weakref.ref[Any]](), list[int]()
    prepare = build.prepare

    def recorded(config: Mapping[str, Any], **options: Any) -> Any:
        gc.collect()
        alive.append(sum(plan() is not None for plan in plans))
        plan = prepare(config, **options)
        plans.append(weakref.ref(plan))
        return plan

    monkeypatch.setattr(build, "prepare", recorded)
    words = ["tracker=local", "model.hidden=[4]"]
    configs = [check(compose([*words, f"optimizer.lr={lr}", "folds=3", f"fold={fold}"]))
               for lr in (0.1, 0.2) for fold in range(3)]  # fmt: skip
    assert prepare_all(configs) == [None] * 6
    assert alive == [0, 0, 0]


@pytest.mark.slow
def test_a_composed_job_keeps_little_memory(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 50 KiB, without what all jobs share."""
    sizes = dict[int, int]()
    compose_one = grid.GridSweeper._compose

    def measured(self: grid.GridSweeper, words: Sequence[str], number: int) -> grid.SweepJob:
        if number in (4, 9):
            gc.collect()
            tracemalloc.start()  # nothing, the second time
            sizes[number] = tracemalloc.get_traced_memory()[0]
        return compose_one(self, words, number)

    def ended(*_: object) -> None:
        raise ConfigError("", "all jobs are composed")

    monkeypatch.setattr(grid.GridSweeper, "_compose", measured)
    monkeypatch.setattr(grid.GridSweeper, "_find_faults", ended)
    try:
        assert cli.main(["train", "-m", "tracker=local", "seed=range(10)"]) == 2
    finally:
        tracemalloc.stop()
    assert (sizes[9] - sizes[4]) / 5 < 50 * 1024


def write_run(folder: Path, *words: str, **summary: Any) -> Path:
    """Write a run folder as a job with these words leaves it."""
    (folder / ".hydra").mkdir(parents=True)
    config = check(compose(words))
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(list(words)))
    (folder / "summary.json").write_text(json.dumps({"num_updates": 4, **summary}))
    return folder


@pytest.mark.extension
def test_keys_that_change_no_result_do_not_rename_runs(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the sweep is over them. The first line counts the jobs."""
    study = workdir / "multirun" / "study"
    write_run(study / "seed-0", "seed=0", "name=study", status="finished")
    for tracker in ("local", "tensorboard"):
        write_run(study / f"seed-0_tracker-{tracker}", "seed=0", f"tracker={tracker}", status="finished")
    write_plan(study, SweepPlan(1.0, [PlannedJob(f"seed-{n}", [f"seed={n}"]) for n in range(3)]))
    base = ("train", "-m", "name=study", "seed=0")
    assert cli.main([*base, "tracker=local", "keep_last=5", "resume_strict=false"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == ("multirun/study: 1 job: 1 finished; 2 that never began are left out")
    assert cli.main([*base, "tracker=local,tensorboard"]) == 0
    others = "1 of other commands are there, which compare reads too"
    assert capsys.readouterr().out.splitlines()[0] == f"multirun/study: 2 jobs: 2 finished; {others}"


def test_a_run_on_another_machine_is_left_to_it(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As long as that machine writes its record."""
    run = write_run(workdir / "multirun" / "study" / "seed-0", "seed=0", status="running", host="node7")
    assert cli.main(["train", "-m", "name=study", "seed=0,1"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        r"name: multirun/study/seed-0 holds a run on node7, which wrote its record \d+ s ago; wait", message
    )
    assert message.endswith("; 1 of 2 jobs cannot run, so none starts (the first: name=study seed=0)")
    os.utime(run / "summary.json", (0, time.time() + 1000.5))  # a clock was set back
    assert re.search(r"its record -100\d s ago; wait", trained_elsewhere(run))
    os.utime(run / "summary.json", (0, time.time() - 1000))
    assert trained_elsewhere(run) == ""
    assert "1000 s ago: that machine is taken for lost, so the run continues here" in capsys.readouterr().err
    (run / "metrics.jsonl").touch()
    assert "node7" in trained_elsewhere(run)
