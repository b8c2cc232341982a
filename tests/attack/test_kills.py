"""A kill before every write of a run, of two ranks, of a sweep, of an upload, and of a run that continues another.

A kill ends all processes at once. The same command then ends like one that was not killed: every byte of the
checkpoints, the links to them, every row, the result and the names of all files. The default tests kill one
run that saves in the background. Every start is a fork of this process, which has trained and so imported everything.
"""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacks import Trials
from killing import KilledStart, differing, start_and_kill
from tiny_runs import TINY, sweep, tiny_job, train, train_on_two_ranks
from wandb_rows import Make, log_rows, rows, without_sdk_keys
from wandb_server import WandbServer

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.runs.job import Job
from hydrant.runs.lock import LEASE
from hydrant.trackers import RunIdentity

MODES = ("save_async=true", pytest.param("save_async=false", marks=pytest.mark.slow))


@pytest.fixture(autouse=True)
def _everything_is_imported(without_gpu: None, tmp_path: Path) -> None:
    assert train(tiny_job(tmp_path / "first")) == 0


Start = Callable[[Path, int | None], KilledStart]
"""Starts in a folder, and is killed before this write; None: never."""


def starts(function: Callable[..., int], arguments: Callable[[Path], tuple[Any, ...]]) -> Start:
    def start(folder: Path, num_writes: int | None) -> KilledStart:
        return start_and_kill(function, arguments(folder), folder, num_writes, folder)

    return start


def attack(
    trials: Trials, start: Start, workdir: Path, prepare: Callable[[Path], object] = Path.mkdir
) -> list[str]:
    """Kill a start before each of its writes and start again; return in what the ends differ from a whole one."""
    whole = workdir / "whole"
    prepare(whole)
    undisturbed = start(whole, None)
    assert undisturbed.exit_status == 0, undisturbed.output
    findings = list[str]()
    for num_writes in trials.of(range(len(undisturbed.writes))):
        folder = workdir / f"killed_{num_writes}"
        prepare(folder)
        killed = start(folder, num_writes)
        again = start(folder, None)
        differences = differing(folder, whole) if again.exit_status == 0 else [again.output]
        if differences:
            findings.append(f"killed before write {num_writes}, {killed.writes[-1]}: {differences}")
        shutil.rmtree(folder)
    return findings


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_run_ends_like_a_whole_one(mode: str, trials: Trials, workdir: Path) -> None:
    start = starts(train, lambda folder: (tiny_job(folder, mode),))
    assert attack(trials, start, workdir) == []


def job_with_test(folder: Path) -> Job:
    """Return the job of a tiny run that evaluates its best checkpoint on a test set at its end."""
    digits = ("data=digits", "data.test_ratio=0.1", "limit_train_samples=64", "limit_test_samples=16")
    words = [*(word for word in TINY if not word.startswith("data")), *digits, "test_at_end=true"]
    return dataclasses.replace(tiny_job(folder), config=check(compose(words)))


@pytest.mark.slow
def test_a_run_killed_before_or_in_its_test_ends_like_a_whole_one(trials: Trials, workdir: Path) -> None:
    assert attack(trials, starts(train, lambda folder: (job_with_test(folder),)), workdir) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_killed_ranks_end_like_whole_ones(mode: str, trials: Trials, workdir: Path) -> None:
    start = starts(train_on_two_ranks, lambda folder: (tiny_job(folder, mode, "parallel=fsdp"),))
    assert attack(trials, start, workdir) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_killed_run_that_continues_another_ends_like_a_whole_one(
    mode: str, trials: Trials, workdir: Path
) -> None:
    source = workdir / "source"
    assert train(tiny_job(source)) == 0
    assert len({link.resolve() for link in (source / "checkpoints").glob("[lb]*")}) == 2  # last and best
    words = (mode, f"resume={source}", "resume_strict=false", "duration=6")
    start = starts(train, lambda folder: (tiny_job(folder, *words),))
    assert attack(trials, start, workdir) == []


@pytest.mark.slow
def test_a_killed_sweep_ends_like_a_whole_one(trials: Trials, workdir: Path) -> None:
    words = ("name=study", "seed=0,1", "duration=2", "hydra.sweep.subdir=seed-${seed}")
    assert attack(trials, starts(sweep, lambda folder: (folder, words)), workdir) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_every_start_brings_one_write_further_ends_like_a_whole_one(
    mode: str, workdir: Path
) -> None:
    start = starts(train, lambda folder: (tiny_job(folder, mode),))
    assert start(workdir / "whole", None).exit_status == 0
    for num_writes in itertools.count():
        killed = start(workdir / "killed", num_writes)
        if not killed.was_killed:
            break
    assert killed.exit_status == 0, killed.output
    assert differing(workdir / "killed", workdir / "whole") == []


def upload(folder: Path) -> int:
    return cli.main(["sync", str(folder)])


@pytest.mark.slow
def test_a_killed_upload_is_completed_once(
    trials: Trials,
    workdir: Path,
    identity: RunIdentity,
    make_wandb: Make,
    end_wandb: Callable[[], None],
    wandb_server: WandbServer,
) -> None:
    tracker = make_wandb(identity, mode="offline")
    log_rows(tracker, 0, 5)
    tracker.finish(0, {})
    end_wandb()  # the SDK may still write its file
    (identity.folder / "summary.json").write_text('{"status": "finished", "num_updates": 5}')

    def prepare(folder: Path) -> None:
        shutil.copytree(identity.folder, folder)
        wandb_server.runs.clear()

    start, received = starts(upload, lambda folder: (folder,)), list[str]()

    def checked(folder: Path, num_writes: int | None) -> KilledStart:
        ended = start(folder, num_writes)
        if num_writes is None:
            history = without_sdk_keys(wandb_server.only_run().history)
            received.extend([f"{folder.name}: the server has {history}"] * (history != rows()))
            received.extend(f"{file} is left" for file in folder.rglob("wandb/.sync"))
            address = json.loads((folder / "summary.json").read_text()).get("wandb", {})
            received.extend([f"{folder.name}: {address}"] * (address.get("mode") != "online"))
            (folder / LEASE).unlink(missing_ok=True)  # if everything was sent, nobody has taken it over
        return ended

    assert attack(trials, checked, workdir, prepare) == []
    assert received == []
