"""Several starts of one run or sweep at once, on one machine and on several: exactly one trains."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from attacks import Trials
from run_folders import rows, summary
from starts import FILE_SYSTEMS, Ended, start_all
from training_runs import command

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import FolderInUse
from hydrant.runs import execute as execution
from hydrant.runs.folder import missing_folders, remove_if_empty
from hydrant.runs.job import Job, report
from hydrant.runs.lock import check_held, exclusive
from hydrant.sweeps.executors.base import Unit, execute_jobs
from hydrant.training import loop

WORDS = (
    "tracker=local", "data=synthetic", "data.input_shape=[1,4,4]", "data.num_classes=3", "data.num_samples=64",
    "data.num_val_samples=8", "model.hidden=[4]", "global_batch_size=8", "duration=6", "log_every=1", "eval_every=2",
    "save_every=2", "name=r",
)  # fmt: skip
NUM_ROUNDS = 10
SPREAD_SECONDS = 0.4
"""The starts begin within this time, which is about as long as one of them."""

SEEDS = range(4, 10)
"""The first of them gives the default tests a case with a job of a sweep."""

BEFORE = ("nothing", "a killed run", "a finished run")
"""What the folder holds when the starts begin."""


@contextlib.contextmanager
def alone(marker: Path) -> Generator[None]:
    """Raise FileExistsError if another process is here."""
    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    try:
        yield
    finally:
        marker.unlink()


def lock_again_and_again(folder: Path, marker: Path) -> int:
    """Make, lock, unlock and remove a folder, as starts that are refused do."""
    for _ in range(NUM_ROUNDS):
        new = missing_folders(folder)
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # another process removes it meanwhile
            folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FolderInUse), exclusive(folder), alone(marker):
            check_held(folder)
            os.sched_yield()
            check_held(folder)
        remove_if_empty(new)
    return 0


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_folder_made_and_removed_has_one_owner(file_system: str, trials: Trials, tmp_path: Path) -> None:
    failures = list[str]()
    for seed in trials.of(range(60)):
        (root := tmp_path / str(seed)).mkdir()
        randomness = random.Random(seed)
        delays = [randomness.random() * 0.01 for _ in range(randomness.choice([2, 3]))]

        def start(root: Path = root) -> int:
            return lock_again_and_again(root / "outputs" / "r", root / "marker")

        ended = start_all([start] * len(delays), delays, file_system, root)
        failures += [f"seed {seed}: {end.output}" for end in ended if end.status]
    assert not failures, "\n".join(failures)


def run(*words: str) -> int:
    return cli.main(["train", *WORDS, *words])


def run_killed() -> int:
    """Start the run, and kill it after its first checkpoint."""
    make_update = loop.make_update

    def update(trainer: loop.Trainer, *, measure: bool) -> Any:
        if trainer.state.num_updates == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return make_update(trainer, measure=measure)

    loop.make_update = update
    return run()


def job_of_sweep() -> int:
    """Start the same run as the job of a sweep: it waits until the folder is free."""
    choices: dict[str, str | None] = dict.fromkeys(
        ("data", "model", "optimizer", "scheduler", "task"), "default"
    )
    job = Job(
        check(compose(list(WORDS))), Path("outputs/r").absolute(), choices, {}, [], Path("outputs").absolute()
    )
    [result], _ = execute_jobs(Unit.execute, [job], is_silent=False)
    return report(result)


def recorded(start: Callable[[], int], marker: Path, trainings: Path) -> Callable[[], int]:
    """Return a start that counts each training, and fails if two train at the same time."""

    def start_recorded() -> int:
        train = execution.train

        def train_alone(trainer: loop.Trainer) -> None:
            with alone(marker), trainings.open("a") as file:
                file.write("trained\n")
                train(trainer)

        execution.train = train_alone
        return start()

    return start_recorded


class Start(NamedTuple):
    """A kind of start, and whether it is expected to end with an exit status and an output."""

    call: Callable[[], int]
    is_expected: Callable[[Ended], bool]


def is_finished_or_refused(end: Ended) -> bool:
    refusal = "error: name: another process is at work in "
    return end.status == 0 or (end.status == 2 and end.output.splitlines()[-1].startswith(refusal))


STARTS = {
    "run": Start(run, is_finished_or_refused),
    "wrong config": Start(lambda: run("optimizer.lr=-1"), lambda end: end.status == 2),
    "job": Start(job_of_sweep, lambda end: end.status == 0),
}


def problems(
    file_system: str, before: str, seed: int, root: Path, undisturbed: Sequence[Any]
) -> Iterator[str]:
    """Start a run two or three times, and once more at the end; yield what is wrong."""
    randomness, trainings = random.Random(f"{file_system} {before} {seed}"), root / "trainings"
    if before == "a killed run":
        start_all([run_killed], [0], file_system, root)
    if before == "a finished run":
        start_all([run], [0], file_system, root)
    trainings.touch()
    kinds = randomness.choices(list(STARTS), weights=[3, 1, 1], k=randomness.choice([2, 3]))
    delays = [randomness.random() * SPREAD_SECONDS for _ in kinds]
    starts = [recorded(STARTS[kind].call, root / "marker", trainings) for kind in kinds]
    for kind, end in zip(kinds, start_all(starts, delays, file_system, root), strict=True):
        if not STARTS[kind].is_expected(end):
            yield f"{kind}: exit status {end.status}: {end.output}"
    [last] = start_all([recorded(run, root / "marker", trainings)], [0], file_system, root)
    if last.status:
        yield f"the last start: exit status {last.status}: {last.output}"
    num_trainings = len(trainings.read_text().splitlines())
    if num_trainings != (before != "a finished run"):
        yield f"trained {num_trainings} times"
    folder = root / "outputs" / "r"
    if rows(folder) != undisturbed or summary(folder)["status"] != "finished":
        yield "the record differs from that of an undisturbed run"


def test_one_of_several_starts_trains(trials: Trials, workdir: Path) -> None:
    run()  # imports what the forks need
    undisturbed, failures = rows(workdir / "outputs" / "r"), list[str]()
    for number, case in enumerate(trials.of(itertools.product(FILE_SYSTEMS, BEFORE, SEEDS))):
        (root := workdir / str(number)).mkdir()
        with contextlib.chdir(root):
            failures += [f"{case}: {problem}" for problem in problems(*case, root, undisturbed)]
    assert not failures, "\n".join(failures)


@pytest.mark.slow
def test_one_of_several_commands_trains(workdir: Path) -> None:
    """The commands themselves, without a simulation: pairs of runs, then pairs of sweeps."""
    for name in ("a", "b", "c"):
        words = command(*WORDS, f"name={name}")
        starts = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        ends = [Ended(-1, start.communicate()[1])._replace(status=start.returncode) for start in starts]
        assert sorted(end.status for end in ends) in ([0, 2], [0, 0]), ends
        assert all(map(is_finished_or_refused, ends)), ends
        assert (workdir / "outputs" / name / "train.log").read_text().count("update 0 of ") == 1
    for name in ("a", "b"):
        words = command("--multirun", *WORDS, f"name={name}", "seed=0,1")
        starts = [subprocess.Popen(words) for _ in range(2)]
        assert [start.wait() for start in starts] == [0, 0]
        logs = [log.read_text() for log in (workdir / "multirun" / name).glob("*/train.log")]
        assert [log.count("update 0 of ") for log in logs] == [1, 1]
