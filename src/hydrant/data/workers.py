"""The worker processes of a DataLoader: start, signals, and the error when one dies."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hydrant.batch import tensors_of
from hydrant.errors import ConfigError, DataError, HydrantError, OutOfMemory, first_line, location, typed_line
from hydrant.imports import paused_gc

T = TypeVar("T")

_SHARED = Path("/dev/shm")
_DEATH_SECONDS = 0.5  # a worker that dies closes its pipe up to this long before its process has ended


def start_method() -> str:
    """Return the start method of worker processes.

    The program may set it for multiprocessing. Otherwise it is fork on Linux.

    Linux forks by default up to Python 3.13. From 3.14 on, the default is a fork server, whose processes import torch
    again, and to which the data set must be pickled. A worker computes on one thread of the CPU, and so may be forked.
    """
    default = multiprocessing.get_all_start_methods()[0]
    chosen = multiprocessing.get_start_method(allow_none=True) or default
    return "fork" if chosen == default == "forkserver" else chosen


class WorkerLoader(DataLoader[T]):
    """A DataLoader whose data set makes whole batches, and whose workers survive Ctrl-C.

    It does not warn about more workers than cores: they may wait for a disk.

    Args:
        dataset: its items are batches.
        num_workers: processes that read ahead; with 0, the training process reads.
        device: batches for CUDA are put into pinned memory.
        sampler: what the data set is indexed with.
        persistent: let the workers live until nothing refers to the loader, not only for one iteration.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        num_workers: int,
        device: torch.device,
        sampler: Iterable[Any] | None = None,
        *,
        persistent: bool = False,
    ) -> None:
        super().__init__(
            dataset,
            batch_size=None,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=_identity,
            pin_memory=device.type == "cuda",
            worker_init_fn=init_worker,
            multiprocessing_context=start_method() if num_workers else None,
            generator=torch.Generator(),  # torch would draw the seed of its workers from the global generator
            persistent_workers=persistent and num_workers > 0,
        )

    def check_worker_number_rationality(self) -> None: ...


def _identity(batch: Any) -> Any:
    return batch


class WorkerProgress:
    """The sample that each worker is reading, in shared memory, so that it is known after the worker's death."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        # (pid, index or -1) of each worker
        self._entries: Any = multiprocessing.RawArray("q", 2 * num_workers)

    def set(self, index: int) -> None:
        """Record, in a worker, the index of the sample it starts to read; -1 between two batches."""
        worker = get_worker_info()
        if worker is not None:
            self._entries[2 * worker.id : 2 * worker.id + 2] = [os.getpid(), index]

    def check_alive(self, name_of: Callable[[int], str], cause: BaseException) -> None:
        """Wait for the workers that die.

        Raises:
            DataError: a worker is dead; names the sample it was reading.
        """
        time.sleep(_DEATH_SECONDS)
        alive = {child.pid for child in multiprocessing.active_children()}
        for pid, index in zip(self._entries[::2], self._entries[1::2], strict=True):
            if pid and pid not in alive:
                when = "between two batches" if index < 0 else f"while it read {name_of(index)}"
                raise DataError(
                    f"a data worker (pid {pid}) died {when}: either it was killed, for example because memory or "
                    "/dev/shm is full (lower data.num_workers or micro_batch_size), or the file crashes its reader"
                ) from cause


def full_shared_memory(samples: Sequence[Any]) -> OutOfMemory:
    """Return the error of a worker that has no room for the batch of these samples in the shared memory."""
    size, room = sum(tensor.nbytes for tensor in tensors_of(list(samples))), shutil.disk_usage(_SHARED).total
    batch = f"a batch of {len(samples)} samples" + (f" takes {size / 2**20:,.0f} MiB" if size else "")
    message = f"{_SHARED} ({room / 2**20:,.0f} MiB) is full: {batch}, and each data worker keeps several"
    remedy = "give a container more (docker run --shm-size=8g), or lower data.num_workers or the batch size"
    return OutOfMemory(message, remedy=remedy)


def iterate_loader(
    loader: Iterable[T], progress: WorkerProgress, name_of: Callable[[int], str]
) -> Iterator[T]:
    """Yield the items of a DataLoader.

    torch reports the death of a worker in a SIGCHLD handler, which may raise in any line of the training loop. Here,
    the error is raised when the missing item is read.

    Raises:
        ConfigError: the data set cannot be sent to the workers.
        DataError: a worker died; names the sample it was reading.
    """
    try:
        with _sigchld_restored():
            iterator = _started(loader)
        yield from iterator
    except (RuntimeError, OSError, EOFError) as error:  # the last two if it died while it sent a batch
        progress.check_alive(name_of, error)
        raise


def _started(loader: Iterable[T]) -> Iterator[T]:
    try:
        with warnings.catch_warnings(), paused_gc():  # a fork collects nothing before `init_worker`
            # torch warns of the same error.
            warnings.filterwarnings("ignore", "Got pickle error when attempting to start a worker")
            return iter(loader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # pickle raises all three
        message = (
            f"workers start by {start_method()}, for which the data set must be pickled: {first_line(error)}"
        )
        remedy = (
            "define its classes and functions in a module, without lambdas and open files; 0 needs no workers"
        )
        raise ConfigError("data.num_workers", message, remedy=remedy) from error


@contextlib.contextmanager
def _sigchld_restored() -> Generator[None]:
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, handler)


def init_worker(_: int) -> None:
    """Make a worker survive Ctrl-C and SIGTERM, because the loop still needs batches to finish its update and save.

    It destroys nothing that the training process has left, which may crash or wait for threads that a fork lacks.
    """
    gc.freeze()
    gc.enable()  # `_started` has paused it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_exit_on_sigterm_from_parent, daemon=True).start()


def _exit_on_sigterm_from_parent() -> None:
    """Exit when the training process sends SIGTERM, as a DataLoader does to end its workers. Ignore other senders."""
    parent = multiprocessing.parent_process()  # not that of os.getppid, which may be a fork server
    assert parent is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


@contextlib.contextmanager
def reading(name: str, lower: str) -> Generator[None]:
    """Name the sample that the user's code reads in this block in the errors that it raises.

    Args:
        name: of the sample.
        lower: the keys that take less memory.

    Raises:
        OutOfMemory: the machine has no memory left; the sample is not damaged.
        DataError: a decoder, a data set or a transform raises anything else but an error of Hydrant.
    """
    try:
        yield
    except HydrantError:  # it says what is wrong
        raise
    except MemoryError as error:
        raise OutOfMemory(f"there is no memory left to read {name}", remedy=f"lower {lower}") from error
    except Exception as error:
        cause = str(error) if isinstance(error, OSError) else f"{typed_line(error)} (at {location(error)})"
        raise DataError(f"{name} cannot be read: {cause}") from error
