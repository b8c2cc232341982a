"""Runs whose environment fails, at the start or later: disk, rights, clock, user, limits, streams, and W&B.

A run must end within a minute with a documented exit status and one line, and the same command, once the environment is
good again, must end like an undisturbed run.
"""

import contextlib
import itertools
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from attacks import Trials
from environments import (
    attack,
    drop_capabilities,
    enter_namespace,
    forked,
    make_read_only,
    make_writable,
    mount_small_disk,
)
from tiny_runs import TINY
from wandb_rows import kill_core
from wandb_server import NOISE, WandbServer

from hydrant import cli

WANDB = ("tracker=wandb", "tracker.probe_timeout=2", "tracker.init_timeout=10", "tracker.finish_timeout=1")
MOMENTS = (0, 1, 3, 4)  # before which update; 0 is before the command


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run in this process, which so imports what its forks need."""
    folder = tmp_path_factory.mktemp("whole")
    assert cli.main(["train", f"hydra.run.dir={folder}", *TINY]) == 0
    return folder


Attack = Callable[[Path], list[str]]
"""Makes a trial in a run folder and returns what went wrong."""


def findings(trials: Trials, attacks: dict[str, Attack], workdir: Path) -> str:
    """Return a line for each thing that went wrong, with the name of its trial."""
    lines = list[str]()
    for number, (name, try_it) in enumerate(trials.of(attacks.items())):
        lines += [f"{name}: {problem}" for problem in try_it(workdir / "outputs" / f"run_{number}")]
    return "\n".join(lines)


def in_namespace(trial: Attack, prepare: Callable[[Path], None] = lambda folder: None) -> Attack:
    """Return a trial that is made in a fork with mounts of its own."""

    def trial_in_namespace(folder: Path) -> list[str]:
        def make() -> int:
            enter_namespace()
            prepare(folder)
            print("\n".join(trial(folder)))
            return 0

        ending = forked(make, seconds=600)  # it waits for two starts with limits of their own
        return ending.output.split("\n")[:-2] if ending.status == 0 else [f"the trial failed: {ending}"]

    return trial_in_namespace


@pytest.fixture
def _namespaces() -> None:
    def enter() -> int:
        enter_namespace()
        return 0

    if forked(enter).status != 0:
        pytest.skip("this machine does not let a user make namespaces")


@pytest.mark.usefixtures("_namespaces")
def test_a_full_or_read_only_disk(trials: Trials, whole: Path, workdir: Path) -> None:
    """From some write on, there is no room for more data or for more files, or nothing can be written."""

    def on_small_disk(spoil: Callable[[Path], None], restore: Callable[[Path], None], moment: int) -> Attack:
        def trial(folder: Path) -> list[str]:
            return attack(folder, whole, spoil, moment, restore)

        def prepare(folder: Path) -> None:
            folder.parent.mkdir(exist_ok=True)
            mount_small_disk(folder.parent, num_pages=500, num_files=120)

        return in_namespace(trial, prepare)

    attacks = {
        f"{room} {what} left before update {moment}": on_small_disk(fill(room), empty, moment)
        for what, fill, rooms in (("pages", fill_data, (0, 2, 8)), ("files", fill_files, (0, 2, 8)))
        for room, moment in itertools.product(rooms, MOMENTS)
    }
    for moment in MOMENTS:
        read_only = on_small_disk(
            lambda folder: make_read_only(folder.parent), lambda folder: make_writable(folder.parent), moment
        )
        attacks[f"read-only before update {moment}"] = read_only
    assert findings(trials, attacks, workdir) == ""


def fill_data(num_pages: int) -> Callable[[Path], None]:
    """Return a function that fills the disk of a run folder up to some pages."""

    def fill(folder: Path) -> None:
        with (folder.parent / "filler").open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            filler.truncate(max(filler.tell() // 4096 - num_pages, 0) * 4096)

    return fill


def fill_files(num_files: int) -> Callable[[Path], None]:
    """Return a function that fills the disk of a run folder up to some files."""

    def fill(folder: Path) -> None:
        (fillers := folder.parent / "fillers").mkdir()
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (fillers / str(number)).touch()
        for filler in itertools.islice(fillers.iterdir(), num_files):
            filler.unlink()

    return fill


def empty(folder: Path) -> None:
    """Remove what fills a disk."""
    (folder.parent / "filler").unlink(missing_ok=True)
    for filler in (folder.parent / "fillers").glob("*"):
        filler.unlink()


@pytest.mark.usefixtures("_namespaces")
def test_permissions_and_a_user_without_a_name(trials: Trials, whole: Path, workdir: Path) -> None:
    def change_mode(name: str, mode: int) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            drop_capabilities()
            path = folder.parent if name == ".." else folder / name
            path.chmod(mode)

        return change

    def restore(folder: Path) -> None:
        for path in (folder.parent, folder, folder / "checkpoints", *folder.glob("*.*")):
            if path.exists():
                path.chmod(0o755)

    def trial(name: str, mode: int, moment: int) -> Attack:
        return lambda folder: attack(folder, whole, change_mode(name, mode), moment, restore)

    attacks: dict[str, Attack] = {
        f"mode {mode:o} of {name} before update {moment}": trial(name, mode, moment)
        for name in (".", "checkpoints", "metrics.jsonl", "summary.json", "config.yaml", "train.log")
        for mode, moment in ((0o000, 1), (0o555, 3))
    }
    attacks |= {f"mode {mode:o} of outputs": trial("..", mode, 0) for mode in (0o000, 0o555)}
    attacks["no user name and no home"] = lambda folder: attack(folder, whole, become_unknown, 0)
    (workdir / "outputs").mkdir()
    assert findings(trials, attacks, workdir) == ""


def become_unknown(folder: Path) -> None:
    """Make this process belong to a user without name and home, as in a container."""
    enter_namespace(user=12345)
    for name in ("HOME", "USER", "LOGNAME"):
        os.environ.pop(name, None)


def test_a_clock_that_jumps(trials: Trials, whole: Path, workdir: Path) -> None:
    def jump(seconds: float) -> Callable[[Path], None]:
        def set_clock(folder: Path) -> None:
            now = time.time
            time.time = lambda: now() + seconds

        return set_clock

    def trial(seconds: float, moment: int) -> Attack:
        return lambda folder: attack(folder, whole, jump(seconds), moment)

    day = 86400.0
    attacks = {
        f"{days} days before update {moment}": trial(days * day, moment)
        for days, moment in itertools.product((-1, -366 * 60, 366 * 20), (0, 1, 3))
    }
    assert findings(trials, attacks, workdir) == ""


def test_low_limits(trials: Trials, whole: Path, workdir: Path) -> None:
    """Of the sizes of files, of open files, of memory and of threads."""

    def limit(name: str, used: Callable[[], int], room: int) -> Callable[[Path], None]:
        kind = getattr(resource, f"RLIMIT_{name}")
        return lambda folder: resource.setrlimit(kind, (used() + room, resource.getrlimit(kind)[1]))

    limits: dict[str, tuple[Callable[[], int], Iterable[int]]] = {
        "FSIZE": (lambda: 0, (0, 1, 700, 6000)),
        "NOFILE": (highest_descriptor, (1, 2, 4, 8)),
        "AS": (virtual_memory, [2**20 * size for size in (8, 64)]),
    }
    attacks: dict[str, Attack] = {}
    for name, (used, rooms) in limits.items():
        # Too little memory ends or blocks torch in C++ while it starts its threads, and without any at any time.
        for room, moment in itertools.product(rooms, (1, 4) if name == "AS" else (0, 1, 4)):
            attacks[f"RLIMIT_{name} + {room} before update {moment}"] = partial(
                attack, whole=whole, spoil=limit(name, used, room), moment=moment
            )
    for moment in (0, 1, 4):
        attacks[f"no thread can start before update {moment}"] = partial(
            attack, whole=whole, spoil=lambda folder: threading.stack_size(2**46), moment=moment
        )
    assert findings(trials, attacks, workdir) == ""


def highest_descriptor() -> int:
    return max(int(path.name) for path in Path("/proc/self/fd").iterdir())


def virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def test_streams_that_cannot_be_written(trials: Trials, whole: Path, workdir: Path) -> None:
    """A run needs neither of them: it ends with 0."""

    def break_streams(out: str, err: str) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            for number, name, how in ((1, "stdout", out), (2, "stderr", err)):
                match how:
                    case "full":
                        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
                    case "broken":
                        reader, writer = os.pipe()
                        os.close(reader)
                        os.dup2(writer, number)
                    case "lost":  # a terminal that is closed
                        terminal, end = os.openpty()
                        os.dup2(end, number)
                        os.close(terminal)
                    case "closed":  # Python then has no stream
                        os.close(number)
                        setattr(sys, name, None)
                        setattr(sys, f"__{name}__", None)
                    case _:
                        pass

        return change

    states = ("full", "broken", "lost", "closed")
    attacks: dict[str, Attack] = {
        f"stdout {out}, stderr {err} before update {moment}": partial(
            attack, whole=whole, spoil=break_streams(out, err), moment=moment, statuses=(0,)
        )
        for state in states
        for out, err in ((state, "open"), ("open", state), (state, state))
        for moment in (0, 3)
        if not (moment and state == "closed")
    }
    assert findings(trials, attacks, workdir) == ""


def test_wandb_that_fails(
    trials: Trials, whole: Path, wandb_server: WandbServer, wandb_home: Path, workdir: Path
) -> None:
    """wandb-core is killed or stopped, or the server answers with noise: the run folder has everything."""

    def trial(spoil: Callable[[Path], object], moment: int) -> Attack:
        return partial(
            attack,
            whole=whole,
            spoil=spoil,
            moment=moment,
            restore=lambda folder: wandb_server.chaos("ok"),
            statuses=(0,),
            words=WANDB,
        )

    attacks = {
        f"wandb-core gets {signum.name} before update {moment}": trial(
            lambda _, s=signum: kill_core(s), moment
        )
        for signum, moment in ((signal.SIGKILL, 1), (signal.SIGSTOP, 4))
    }
    for mode, (endpoint, moment) in itertools.product(NOISE, (("graphql", 0), ("file_stream", 1))):
        url = f"{wandb_server.url}/chaos/{quote(mode)}/{endpoint}"
        answer_noise = trial(lambda _, url=url: urlopen(url, b"").close(), moment)
        attacks[f"{endpoint} answers {mode} before update {moment}"] = answer_noise
    assert findings(trials, attacks, workdir) == ""
