"""Saving checkpoints: copy the state to the host, then write the copy while training continues."""

import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import torch
import torch.distributed as dist

from hydrant.errors import CheckpointError, Interrupted, log, typed_line
from hydrant.training.checkpoint import storage
from hydrant.training.checkpoint.folder import CheckpointFolder, Retention, newest_checkpoint


class Rows:
    """The rows that a run has logged into files of its folder; this one has none."""

    def num_rows(self) -> Mapping[str, int]:
        """Return the number of rows by the name of their file."""
        return {}

    def sync_rows(self) -> None:
        """Flush all rows to disk. The checkpoint thread calls it."""


class CheckpointManager:
    """Saves the checkpoints of one run. Every rank has a manager, and all ranks save at the same time.

    Use it as a context inside a process group; at its end, it waits until the last checkpoint is written. A full or
    read-only disk does not stop training: each cause is logged once, and the error of the last checkpoint is raised at
    the end of the context.

    Args:
        path: `<run folder>/checkpoints`.
        rows: a checkpoint is published after they are on disk, and records their number. Only rank 0 uses them.
        in_background: `save` returns after the copy to the host, instead of after writing.
        timeout_seconds: how long a rank that has written its part waits for the other ranks before saving fails.
    """

    def __init__(
        self,
        path: Path,
        keep: Retention,
        rows: Rows | None = None,
        *,
        in_background: bool = False,
        timeout_seconds: float = 1800,
    ) -> None:
        self.folder = CheckpointFolder(path, keep)
        self._rows = rows or Rows()
        self._in_background = in_background
        self._timeout = timedelta(seconds=timeout_seconds)
        self._pending: tuple[int, Future[None], Callable[[], None]] | None = None
        self._snapshot: storage.Snapshot | None = None  # the last one, whose memory the next one reuses
        self._disk_error = ""  # of the last checkpoint
        self._logged_causes = set[str]()

    def __enter__(self) -> Self:
        is_alone = dist.get_world_size() == 1
        # Several ranks have a separate group, because training's collectives run at the same time.
        group = dist.group.WORLD if is_alone else dist.new_group(backend="gloo", timeout=self._timeout)
        self._group = cast("dist.ProcessGroup", group)
        self._is_rank_zero = dist.get_rank() == 0
        # A thread that copies from a GPU uses the first one otherwise, and each rank opens a context on it.
        is_on_gpu = torch.cuda.is_initialized()
        set_device = partial(torch.cuda.set_device, torch.cuda.current_device()) if is_on_gpu else None
        self._thread = ThreadPoolExecutor(1, "checkpoint", set_device)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_regular = kind is None or issubclass(kind, Interrupted)
        try:
            self.wait()
            if self._disk_error and is_regular:
                raise CheckpointError(self._disk_error)
        except CheckpointError as failed:
            if is_regular:
                raise
            log.warning("%s", failed)  # another error ends the run already
        finally:
            self._thread.shutdown()
            self._snapshot = None
            if self._group is not dist.group.WORLD:
                dist.destroy_process_group(self._group)

    def save(
        self,
        num_updates: int,
        content: storage.Checkpoint,
        *,
        is_best: bool,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Save the checkpoint of `num_updates`, point `last` (and `best`) at it, and remove those not kept.

        `on_written` is called in this thread, by this or a later call, once the checkpoint is on disk.

        Raises:
            CheckpointError: this checkpoint or the one before cannot be saved, and the disk is not the cause.
        """
        self.wait()
        self._snapshot = storage.Snapshot.of(content, is_rank_zero=self._is_rank_zero, reuse=self._snapshot)
        notes = {"num_updates": num_updates, "is_best": is_best, "rows": self._rows.num_rows()}
        # In this context, which may choose the log of the run.
        write = partial(contextvars.copy_context().run, self._write)
        future = self._thread.submit(write, self._snapshot, notes, _copy_barrier())
        self._pending = num_updates, future, on_written
        if not self._in_background:
            self.wait()

    def poll(self) -> bool:
        """Complete the pending checkpoint if it is written; return whether saving has failed for another cause than the
        disk. Does not wait.

        The next `save` raises the error. Ranks learn of a failure at different times, so they must agree before they
        act on it.
        """
        if self._pending is None or not self._pending[1].done():
            return False
        if isinstance(self._pending[1].exception(), OSError | None):
            self.wait()
            return False
        return True

    def wait(self) -> None:
        """Wait until the pending checkpoint is written.

        Raises:
            CheckpointError: it cannot be saved, and the disk is not the cause.
        """
        if self._pending is None:
            return
        num_updates, future, on_written = self._pending
        path = self.folder.path_of(num_updates)
        try:
            future.result()
        except OSError as error:
            newest, cause = newest_checkpoint(path.parent), error.strerror or str(error)
            kept = f"{newest.name} is the newest checkpoint" if newest else "there is no earlier checkpoint"
            self._disk_error = f"{path} cannot be written: {cause}; {kept}"
            if cause not in self._logged_causes:
                self._logged_causes.add(cause)
                log.warning("%s; training continues", self._disk_error)
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"{path} cannot be written: {typed_line(error)}") from error
        finally:
            if future.done():  # it is not after a KeyboardInterrupt
                self._pending = None
        if future.exception() is None:
            self._disk_error = ""
            on_written()

    def _write(
        self, snapshot: storage.Snapshot, notes: Mapping[str, Any], wait_for_copies: Callable[[], None]
    ) -> None:
        num_updates: int = notes["num_updates"]
        path = self.folder.temporary_path(num_updates)

        def publish() -> None:
            self._rows.sync_rows()
            self.folder.publish(num_updates, is_best=notes["is_best"])

        wait_for_copies()
        try:
            storage.write(path, snapshot.parts, snapshot.texts, notes, publish, self._group)
        except BaseException:
            if self._is_rank_zero:
                self.folder.discard(num_updates)
            raise


def _copy_barrier() -> Callable[[], None]:
    """Return a function that waits for the copies from CUDA that were issued before this call."""
    if not torch.cuda.is_available():
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
