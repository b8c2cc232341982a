"""The worker processes of a DataLoader: their signals, and the error when one dies."""

import functools
import gc
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from environments import enter_namespace, forked, mount_small_disk
from marks import slow
from run_folders import summary
from sources import as_input
from training_runs import Train, UserModule

from hydrant.batch import Batch, Outcome
from hydrant.clock import Steps
from hydrant.data import LoaderSource, StreamSpec, dataset_source
from hydrant.data.base import ON_HOST
from hydrant.data.loader import Transform
from hydrant.data.workers import WorkerLoader, start_method
from hydrant.errors import ConfigError, DataError, OutOfMemory
from hydrant.tasks import Classification
from hydrant.training import loop

SPEC = StreamSpec(0, Steps.constant(8), 4, 0, 1, torch.device("cpu"))
RUN = (
    "data=dataset", "data.train._target_=own_arrays.rows", "+data.train.count=21", "data.val._target_=own_arrays.rows",
    "+data.val.count=9", "allow_targets=[own_arrays]", "data.input_shape=[6]", "data.num_classes=3", "model.hidden=[8]",
    "tracker=local", "global_batch_size=6", "micro_batch_size=3", "eval_batch_size=4", "log_every=1", "eval_every=4",
    "save_every=2",
)  # fmt: skip


ARRAYS = """
import torch

def rows(count):
    return torch.utils.data.TensorDataset(torch.rand(count, 6, generator=torch.Generator()), torch.arange(count) % 3)
"""


@pytest.fixture
def arrays(user_module: UserModule) -> None:
    """Write a module that makes samples of three classes."""
    user_module("own_arrays", ARRAYS)


class Samples:
    """100 samples whose class is the process that reads them."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def make_source(samples: Samples) -> LoaderSource:
    return LoaderSource(samples, as_input, as_input, (0.0,), (1.0,), num_workers=2)


@pytest.mark.parametrize("signum", [signal.SIGINT, *slow(signal.SIGTERM)])
def test_workers_ignore_signals_that_do_not_come_from_the_parent(signum: signal.Signals) -> None:
    stream = make_source(Samples()).stream(SPEC)
    pids = {pid for n in range(2) for batch in stream.micro_batches(n) for pid in batch.targets.tolist()}
    command = ["kill", f"-{signum.value}", *map(str, pids)]  # sent by another process than the parent
    subprocess.run(command, check=True)
    # More updates than the workers have prefetched.
    assert {pid for n in range(2, 12) for b in stream.micro_batches(n) for pid in b.targets.tolist()} == pids
    stream.close()
    assert multiprocessing.active_children() == []


class Deadly(Samples):
    """Kills the worker that reads sample 3."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.usefixtures("quick_death")
def test_the_death_of_a_worker_is_raised_with_its_sample() -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    refusal = r"^a data worker \(pid \d+\) died while it read sample 3 of the data set: "
    with pytest.raises(DataError, match=refusal):
        list(itertools.chain.from_iterable(map(make_source(Deadly()).stream(SPEC).micro_batches, range(13))))
    assert signal.getsignal(signal.SIGCHLD) is handler


class Left(Samples):
    """Collects garbage in the worker, which must not destroy one of these that the training process has left."""

    cycle, maker = None, os.getpid()

    def __getitem__(self, index: int) -> tuple[int, int]:
        assert gc.isenabled()
        gc.collect()
        return super().__getitem__(index)

    def __del__(self) -> None:
        if os.getpid() != self.maker:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("quick_death")
def test_a_worker_destroys_nothing_that_the_training_process_has_left() -> None:
    """Also if its collector runs before `init_worker`, as it may after any new object."""
    threshold = gc.get_threshold()
    os.register_at_fork(after_in_child=lambda: gc.get_threshold()[0] or not gc.isenabled() or gc.collect())
    gc.set_threshold(0)  # nor in this process
    try:
        left = Left()
        left.cycle, left = left, Left()
        assert next(iter(make_source(left).stream(SPEC).micro_batches(0))).num_samples
    finally:
        gc.set_threshold(*threshold)


class Large(Samples):
    """Each sample takes 1 MiB."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2**18), index


def test_a_full_shared_memory_is_named_also_for_a_collate_function_of_the_user() -> None:
    """As in a container of Docker, which has 64 MiB."""

    def own(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([inputs for inputs, _ in samples]), torch.zeros(len(samples))

    def read() -> int:
        try:
            enter_namespace()
        except OSError:
            return 9
        mount_small_disk(Path("/dev/shm"), num_pages=768)
        for collate in (None, own):
            with pytest.raises(OutOfMemory) as full:
                next(iter(dataset_source(Large(), collate=collate, num_workers=1).batches(ON_HOST, 4)))
            print(full.value)
        return 0

    ended = forked(read)
    if ended.status == 9:
        pytest.skip("this machine does not let a user make namespaces")
    assert ended.status == 0, ended.output
    message = "/dev/shm (3 MiB) is full: a batch of 4 samples takes 4 MiB, and each data worker keeps several"
    lines = ended.output.splitlines()
    assert [line[: len(message)] for line in lines] == [message, message]
    assert all("docker run --shm-size=8g" in line for line in lines)


@pytest.mark.slow
@pytest.mark.usefixtures("arrays")
def test_a_killed_worker_fails_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_update = loop.make_update

    def kill_workers(trainer: loop.Trainer, *, measure: bool) -> Any:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)
        return make_update(trainer, measure=measure)

    monkeypatch.setattr(loop, "make_update", kill_workers)
    folder = train(*RUN, "data.num_workers=2", "duration=50", status=1)
    assert re.match(r"error: a data worker \(pid \d+\) died ", capfd.readouterr().err.splitlines()[-1])
    assert summary(folder)["error"]["type"] == "DataError"
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("end", ["error", *slow("regular", "Ctrl-C", "Ctrl-C twice")])
@pytest.mark.usefixtures("arrays")
def test_all_workers_end_with_the_run(end: str, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of training, and those of evaluation, which wait between two passes."""
    forward, seen = Classification.forward, list[tuple[int, ...]]()

    def fail_or_interrupt(task: Classification, batch: Batch) -> Outcome:
        children = tuple(sorted(child.pid or 0 for child in multiprocessing.active_children()))
        seen.extend([children] if not task.training else [])
        if len(seen) == 8 and end == "error":
            raise RuntimeError("broken")
        for _ in range({"Ctrl-C": 1, "Ctrl-C twice": 2}.get(end, 0) if len(seen) == 8 else 0):
            signal.raise_signal(signal.SIGINT)
        return forward(task, batch)

    monkeypatch.setattr(Classification, "forward", fail_or_interrupt)
    train(*RUN, "data.num_workers=2", "duration=12", status={"regular": 0, "error": 1}.get(end, 130))
    assert multiprocessing.active_children() == []
    # None, those of evaluation, and those of training too.
    assert [len(children) for children in sorted(set(seen))] == [0, 2, 4]


def test_more_workers_than_cores_give_no_warning() -> None:
    """Warnings are errors in the tests."""
    many = 1 + 2 * (os.cpu_count() or 1)
    assert WorkerLoader(Samples(), many, SPEC.device).num_workers == many  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("default", "chosen", "method"),
    [
        ("fork", None, "fork"),  # Linux up to Python 3.13
        ("forkserver", None, "fork"),  # Linux from Python 3.14 on
        ("forkserver", "forkserver", "fork"),  # multiprocessing was used, which sets its default
        ("forkserver", "spawn", "spawn"),
        ("fork", "forkserver", "forkserver"),
        ("spawn", None, "spawn"),  # macOS
    ],
)
def test_workers_are_forked_unless_the_program_chooses_another_start(
    default: str, chosen: str | None, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = sorted(["fork", "spawn", "forkserver"], key=lambda name: name != default)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: chosen)
    assert start_method() == method


def pairs_source(transform: Transform, num_workers: int) -> LoaderSource:
    pairs = [(number, number) for number in range(20)]
    return LoaderSource(pairs, transform, transform, (0.0,), (1.0,), num_workers)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_read_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.data.workers.start_method", lambda: method)
    read = []
    for num_workers in (0, 2):
        stream = pairs_source(as_input, num_workers).stream(SPEC)
        read.append([b.inputs for n in (0, 1, 7) for b in stream.micro_batches(n)])
        stream.close()
        read[-1] += [batch.inputs for batch in pairs_source(as_input, num_workers).batches(SPEC, 8)]
    assert torch.equal(torch.cat(read[0]), torch.cat(read[1]))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("method", [*slow("spawn"), "forkserver"])
def test_a_data_set_that_cannot_be_pickled_is_refused_in_words(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.data.workers.start_method", lambda: method)
    local, lock = lambda value: as_input(value), functools.partial(as_input, threading.Lock())
    for transform in (local, lock):
        with pytest.raises(ConfigError) as caught:
            next(iter(pairs_source(transform, 1).stream(SPEC).micro_batches(0)))
        assert str(caught.value).startswith(
            f"data.num_workers: workers start by {method}, for which the data set must "
        )
        assert "0 needs no workers" in str(caught.value)


ROWS = """
import os

import torch

with open("imports", "a") as file:
    file.write("imported ")


class Rows:
    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 12

    def __getitem__(self, index):
        with open(f"{self.kind}_readers", "a") as file:
            file.write(f"{os.getpid()} ")
        return torch.tensor([index, index % 3, 1.0]), index % 3
"""


def test_workers_import_nothing_and_training_keeps_its_own(
    train: Train, user_module: UserModule, workdir: Path
) -> None:
    """Over all epochs and evaluations, on every Python."""
    user_module("own_rows", ROWS)
    sets = [f"data.{kind}._target_=own_rows.Rows +data.{kind}.kind={kind}" for kind in ("train", "val")]
    words = "data=dataset data.input_shape=[3] data.num_classes=3 allow_targets=[own_rows] model.hidden=[4] "
    words += "global_batch_size=2 eval_batch_size=3 duration=4ep eval_every=1ep data.num_workers=2"
    train("tracker=local", *" ".join((*sets, words)).split())
    assert multiprocessing.active_children() == []
    readers = {kind: set((workdir / f"{kind}_readers").read_text().split()) for kind in ("train", "val")}
    assert (workdir / "imports").read_text().split() == ["imported"]
    assert len(readers["train"]) == 2 + 1  # the workers, and that of the rehearsal
    assert len(readers["val"]) == 2 + 1
    assert not [pid for pids in readers.values() for pid in pids if Path("/proc", pid).exists()]
