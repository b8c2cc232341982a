"""The worker processes of a DataLoader: their signals, their random numbers, and the error when one dies."""

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
from torch.utils.data import DataLoader, get_worker_info

from hydrant.errors import DataError

T = TypeVar("T")

_DEATH_SECONDS = 0.5  # a worker that dies closes its pipe up to this long before its process has ended


class WorkerLoader(DataLoader[T]):
    """A DataLoader that does not warn about more workers than cores: they may wait for a disk."""

    def check_worker_number_rationality(self) -> None: ...


class WorkerProgress:
    """Which sample each worker is reading, in shared memory, so that it can be read after a worker died."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        # (pid, index or -1) of each worker
        self._entries: Any = multiprocessing.RawArray("q", 2 * num_workers)

    def set(self, index: int) -> None:
        """Record, in a worker, the index of the sample it starts to read; -1 between two batches."""
        worker = get_worker_info()
        if worker is not None:
            self._entries[2 * worker.id : 2 * worker.id + 2] = [os.getpid(), index]

    def death_error(self, name_of: Callable[[int], str]) -> DataError | None:
        """Return the error that names a dead worker and its sample; None if all workers are alive."""
        time.sleep(_DEATH_SECONDS)
        alive = {child.pid for child in multiprocessing.active_children()}
        for pid, index in zip(self._entries[::2], self._entries[1::2], strict=True):
            if pid and pid not in alive:
                when = "between two batches" if index < 0 else f"while it read {name_of(index)}"
                return DataError(
                    f"a data worker (pid {pid}) died {when}: either it was killed, for example because memory or "
                    "/dev/shm is full (lower data.num_workers or micro_batch_size), or the file crashes its reader"
                )
        return None


def iterate_loader(
    loader: Iterable[T], progress: WorkerProgress, name_of: Callable[[int], str]
) -> Iterator[T]:
    """Yield the items of a DataLoader.

    torch reports the death of a worker in a SIGCHLD handler, which may raise in any line of the training loop. Here,
    the error is raised when the missing item is read.

    Raises:
        DataError: a worker died; names the sample it was reading.
    """
    with _sigchld_restored():
        iterator = iter(loader)
    try:
        yield from iterator
    except (RuntimeError, OSError, EOFError) as error:  # the last two if it died while it sent a batch
        death = progress.death_error(name_of)
        if death is None:
            raise
        raise death from error


@contextlib.contextmanager
def _sigchld_restored() -> Generator[None]:
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, handler)


def init_worker(_: int) -> None:
    """Make a worker survive Ctrl-C and SIGTERM, because the loop still needs batches to finish its update and save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # only there can a process see who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_sigterm_from_parent, daemon=True).start()


def _exit_on_sigterm_from_parent() -> None:
    """Exit when the parent sends SIGTERM, as a DataLoader does to end its workers. Ignore other senders."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def seed_rngs(seed: int) -> None:
    """Seed the global CPU generators of Python, NumPy and torch. (`torch.manual_seed` would seed CUDA's too.)"""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def preserve_rngs() -> Generator[None]:
    """Restore the global CPU generators, which without workers are those of the training process."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(torch_state)
