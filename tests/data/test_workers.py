"""The worker processes of a DataLoader: their signals, and the error when one dies."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import signal
import subprocess
from typing import Any

import pytest
import torch
from run_folders import summary
from sources import as_input
from training_runs import Train

from hydrant.clock import Steps
from hydrant.data import LoaderSource, StreamSpec
from hydrant.data.workers import WorkerLoader
from hydrant.errors import DataError
from hydrant.training import loop

SPEC = StreamSpec(0, Steps.constant(8), 4, 0, 1, torch.device("cpu"))
RUN = (
    "data=image_folder", "data.root=images", "data.input_shape=[3,8,8]", "model=mlp", "model.hidden=[8]",
    "tracker=local", "global_batch_size=6", "micro_batch_size=3", "eval_batch_size=4", "log_every=1", "eval_every=4",
    "save_every=2",
)  # fmt: skip


class Samples:
    """100 samples whose class is the process that reads them."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def make_source(samples: Samples) -> LoaderSource:
    return LoaderSource(samples, as_input, as_input, (0.0,), (1.0,), num_workers=2)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
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


def test_the_death_of_a_worker_is_raised_with_its_sample() -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(
        DataError, match=r"^a data worker \(pid \d+\) died while it read sample 3 of the data set: "
    ):
        list(itertools.chain.from_iterable(map(make_source(Deadly()).stream(SPEC).micro_batches, range(13))))
    assert signal.getsignal(signal.SIGCHLD) is handler


@pytest.mark.slow
@pytest.mark.usefixtures("image_root")
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


def test_more_workers_than_cores_give_no_warning() -> None:
    """Warnings are errors in the tests."""
    many = 1 + 2 * (os.cpu_count() or 1)
    assert WorkerLoader(Samples(), num_workers=many).num_workers == many  # type: ignore[arg-type]
