"""Saving: a copy on the host, which is written while training goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import cast

import torch
import torch.distributed as dist

from hydrant.checkpoint import storage
from hydrant.checkpoint.folder import Folder, Retention, newest
from hydrant.checkpoint.state import Checkpoint, Snapshot
from hydrant.errors import CheckpointError, Interrupted, typed_line

log = logging.getLogger("hydrant")


class Checkpoints:
    """Saves the checkpoints of one run. Every rank has one, and saves when the others do.

    A context of torch.distributed's, which ends when the last checkpoint is written. A disk that is full or cannot
    be written does not end training: it is told, once for each cause, and the context ends with the error unless
    a later checkpoint could be written.

    Args:
        path: `<run folder>/checkpoints`.
        in_background: `save` returns when the state is copied; else when it is written.
        timeout_seconds: how long a rank that has written its part waits for the others before saving fails.
    """

    def __init__(
        self, path: Path, keep: Retention, *, in_background: bool = False, timeout_seconds: float = 1800
    ) -> None:
        self.folder = Folder(path, keep)
        self._path = path
        self._in_background = in_background
        self._timeout = timedelta(seconds=timeout_seconds)
        self._pending: tuple[int, Future[None], Callable[[], None]] | None = None
        self._snapshot: Snapshot | None = None  # of the last one, on whose memory the next one is copied
        self._failure = ""  # of the last one, if the disk did not take it
        self._causes = set[str]()

    def __enter__(self) -> Checkpoints:
        # Of its own: training's collectives go on meanwhile.
        self._group = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=self._timeout))
        self._is_rank_zero = dist.get_rank() == 0
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        is_regular = kind is None or issubclass(kind, Interrupted)
        try:
            self.wait()
            if self._failure and is_regular:
                raise CheckpointError(self._failure)
        except CheckpointError as failed:
            if is_regular:
                raise
            log.warning("%s", failed)  # the run fails anyway, and says why
        finally:
            self._thread.shutdown()
            self._snapshot = None
            dist.destroy_process_group(self._group)

    def save(
        self,
        num_updates: int,
        content: Checkpoint,
        *,
        is_best: bool,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """Save the checkpoint of `num_updates`, point `last` (and `best`) at it, remove those not kept.

        `written` is called in this thread, by this or a later call, when it is on disk.

        Raises:
            CheckpointError: this one, or the one before, cannot be saved, and not for want of a disk.
        """
        self.wait()
        snapshot = Snapshot.of(content, is_rank_zero=self._is_rank_zero, over=self._snapshot)
        self._snapshot, copied = snapshot, _end_of_copies()
        future = self._thread.submit(self._write, num_updates, snapshot, copied, is_best)
        self._pending = num_updates, future, written
        if not self._in_background:
            self.wait()

    def has_failed(self) -> bool:
        """Whether what is saved in the background has failed, not for want of a disk; does not wait for it.

        The next `save` raises why. Ranks learn of it at different times: what they do about it, they agree on first.
        """
        if self._pending is None or not self._pending[1].done():
            return False
        if isinstance(self._pending[1].exception(), OSError | None):
            self.wait()
            return False
        return True

    def wait(self) -> None:
        """Until what is saved in the background is written.

        Raises:
            CheckpointError: it cannot be saved, and not for want of a disk.
        """
        if self._pending is None:
            return
        num_updates, future, written = self._pending
        target = self.folder.target(num_updates)
        try:
            future.result()
        except OSError as error:
            self._note(f"{target} cannot be written", error.strerror or str(error))
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"{target} cannot be written: {typed_line(error)}") from error
        finally:
            if future.done():  # else Ctrl-C came in between
                self._pending = None
        if future.exception() is None:
            self._failure = ""
            written()

    def _write(self, num_updates: int, snapshot: Snapshot, copied: Callable[[], None], is_best: bool) -> None:
        copied()
        try:
            storage.write(
                self.folder.aside(num_updates),
                snapshot.parts,
                snapshot.texts,
                {"num_updates": num_updates, "is_best": is_best},
                lambda: self.folder.publish(num_updates, is_best=is_best),
                self._group,
            )
        except BaseException:
            if self._is_rank_zero:
                self.folder.discard(num_updates)
            raise

    def _note(self, what: str, cause: str) -> None:
        last = newest(self._path)
        stays = "there is no earlier one" if last is None else f"{last.name} is the last whole one"
        self._failure = f"{what}: {cause}; {stays}"
        if cause not in self._causes:
            self._causes.add(cause)
            log.warning("%s; training goes on", self._failure)


def _end_of_copies() -> Callable[[], None]:
    """A function that waits until the copies which CUDA has been asked for are made."""
    if not torch.cuda.is_available():
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
