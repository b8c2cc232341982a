"""What goes on in data workers, and what is told when one dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import get_worker_info

from hydrant.errors import DataError

T = TypeVar("T")

_DYING_SECONDS = 0.5


class Reading:
    """Which sample each worker is at, in memory that outlives it."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._places: Any = multiprocessing.RawArray("q", 2 * num_workers)  # pid and index, or -1, of each

    def begin(self, index: int) -> None:
        """Note, in a worker, that it is about to read a sample; -1: that it is done with its batch."""
        worker = get_worker_info()
        if worker is not None:
            self._places[2 * worker.id : 2 * worker.id + 2] = [os.getpid(), index]

    def death(self, name_of: Callable[[int], str]) -> DataError | None:
        """The error for a worker that is dead, if one is; one that dies has closed its files a moment before."""
        time.sleep(_DYING_SECONDS)
        alive = {child.pid for child in multiprocessing.active_children()}
        pairs = zip(self._places[::2], self._places[1::2], strict=True)
        for pid, index in ((pid, index) for pid, index in pairs if pid and pid not in alive):
            where = "between two batches" if index < 0 else f"while it read {name_of(index)}"
            return DataError(
                f"a data worker (pid {pid}) died {where}: it was killed, as where memory or /dev/shm is full "
                "(lower data.num_workers or micro_batch_size), or the file crashes what reads it"
            )
        return None


def workers_told(loader: Iterable[T], reading: Reading, name_of: Callable[[int], str]) -> Iterator[T]:
    """What a DataLoader gives; DataError where a worker died, with the sample it was at.

    torch would raise it in the middle of whatever the loop does just then; here it comes with the batch that is
    missing.
    """
    with _sigchld_restored():
        iterator = iter(loader)
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            return
        except (
            RuntimeError,
            OSError,
            EOFError,
        ) as error:  # those two where it died while it handed a batch over
            death = reading.death(name_of)
            if death is None:
                raise
            raise death from error
        yield item


@contextlib.contextmanager
def _sigchld_restored() -> Generator[None]:
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, before)


def outlive_signals(_: int) -> None:
    """Ctrl-C and SIGTERM reach workers too, while the loop still needs batches to end its update and save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # where a process can ask who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_when_the_loop_says_so, daemon=True).start()


def _end_when_the_loop_says_so() -> None:
    """The loop's process ends a worker that does not stop by SIGTERM: obey that one, from nobody else."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def seed_streams(value: int) -> None:
    """Seed the global streams of the host. (`torch.manual_seed` would seed the device's too.)"""
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value)


@contextlib.contextmanager
def streams_restored() -> Generator[None]:
    """Leave the global host streams as they were: without workers they are those of the training process."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(torch_state)
