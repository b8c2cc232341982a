"""Damaged samples and dead workers: what is done about them, and what is told."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.utils.data import get_worker_info

from hydrant.errors import DataError
from hydrant.logs import log

T = TypeVar("T")

MAX_DAMAGED_IN_A_ROW = 100
"""So many neighbours are no few damaged files, but a folder that is gone or a transform that fails."""


@dataclass
class Faults:
    """Whether damaged samples end a run or are skipped, and which were met in this process."""

    skips: bool = False
    remedy: str = ""  # what an error that ends the run says at its end
    _damaged: set[str] = field(default_factory=set[str])

    @property
    def num_damaged(self) -> int:
        return len(self._damaged)

    def note(self, damaged: Mapping[str, str]) -> None:
        """Tell of each skipped sample once."""
        for name, told in damaged.items():
            if name not in self._damaged:
                self._damaged.add(name)
                log.warning("skipped: %s", told)


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
        """The error for a worker that is dead, if one is."""
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
        except RuntimeError as error:
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
