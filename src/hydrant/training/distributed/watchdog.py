"""Find the rank that hangs, report where it is, and end the run.

Without this, the other ranks would wait for it forever, or fail with an error of the collective they wait in.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from hydrant.errors import RankHung, innermost
from hydrant.training.distributed.world import STORE_SECONDS, World

T = TypeVar("T")

_TICK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0  # in which every rank must write its position
_START_SECONDS = 300.0  # least timeout until the second update, because data are read and models compiled
_HANG_KEY = "hang"


@dataclass(frozen=True)
class RankPosition:
    """The position of a rank's main thread."""

    num_phases: int  # phases entered so far; every rank enters the same ones
    phase: str  # such as "forward after update 4"
    location: str  # file:line
    num_collectives: int  # begun so far, in all process groups
    is_waiting: bool  # in torch.distributed, for other ranks
    stack: str


class Watchdog:
    """A context with a thread that watches the progress of the loop. Off for a single rank.

    After `timeout_seconds` without progress, every rank writes its position to the store. The rank that is behind is
    passed to `report` with the stacks of all ranks, and every rank ends with exit status 1. A rank that hangs
    writes no position; the ranks on its machine kill it.
    """

    def __init__(
        self,
        world: World | None = None,
        timeout_seconds: float = 0.0,
        report: Callable[[RankHung, str], None] = lambda error, stacks: None,
    ) -> None:
        self._world = world if world is not None and world.world_size > 1 else None
        self._timeout, self._report = timeout_seconds, report
        self._limit = max(timeout_seconds, _START_SECONDS)
        self._num_phases, self._phase, self._num_updates = 0, "", 0
        self._progress_at = time.monotonic()
        self._stopped = threading.Event()
        self._main_thread_id = threading.get_ident()
        self._thread: threading.Thread | None = None

    @property
    def is_on(self) -> bool:
        return self._world is not None

    def enter(self, phase: str, num_updates: int) -> None:
        """Note that the loop enters a phase. Every rank enters the same phases."""
        self._num_phases += 1
        if self._phase and num_updates > self._num_updates:  # the first update, which compiles, is done
            self._limit = self._timeout
        self._phase, self._num_updates = phase, num_updates
        self._progress_at = time.monotonic()

    def track(self, items: Iterable[T]) -> Generator[T]:
        """Yield the items; each counts as progress."""
        for item in items:
            self._progress_at = time.monotonic()
            yield item

    def __enter__(self) -> Watchdog:
        if self._world is not None:
            store = self._world.store("watchdog")
            self._thread = threading.Thread(target=self._watch, args=(self._world, store), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop watching. Afterwards no timeout applies."""
        self._stopped.set()
        if self._thread is not None:  # a thread inside the store when Python exits would cause a SIGABRT
            self._thread.join(STORE_SECONDS)

    def _watch(self, world: World, store: dist.Store) -> None:
        with contextlib.suppress(RuntimeError):
            store.set(f"process/{world.rank}", f"{os.getpid()} {socket.gethostname()}")
        ticked_at = time.monotonic()
        while not self._stopped.wait(_TICK_SECONDS):
            now = time.monotonic()
            # A late tick means that the processes were suspended: that time does not count.
            self._progress_at += max(now - ticked_at - 2 * _TICK_SECONDS, 0)
            ticked_at = now
            # RuntimeError: the process that hosts the store has ended. Then the run ends too.
            with contextlib.suppress(RuntimeError):
                if time.monotonic() - self._progress_at > self._limit:
                    store.set(_HANG_KEY, "")
                if store.check([_HANG_KEY]):
                    self._end_run(world, store)

    def _end_run(self, world: World, store: dist.Store) -> None:
        try:
            store.set(f"position/{world.rank}", json.dumps(asdict(self._position())))
            positions = _read_positions(store, world.world_size)
            error, stacks = _diagnose(positions, world.world_size, self._limit)
            if world.rank == min(positions):
                self._report(error, stacks)
            _kill_silent_ranks(store, world, positions)
        finally:
            sys.stdout.flush()
            os._exit(1)

    def _position(self) -> RankPosition:
        frames = sys._current_frames()  # no public name exists
        stack = traceback.extract_stack(frames[self._main_thread_id])
        file, line = innermost((frame.filename, frame.lineno) for frame in stack)
        is_waiting = "torch/distributed/" in stack[-1].filename
        text = "".join(traceback.format_list(stack))
        phase = f"{self._phase} after update {self._num_updates}" if self._phase else "the start"
        where = f"{Path(file).name}:{line}"
        return RankPosition(self._num_phases, phase, where, num_collectives(), is_waiting, text)


def num_collectives() -> int:
    """Return how many collectives this process has begun, in all process groups.

    On CUDA, a rank that waits for others may stand anywhere: in a backward pass, or where it reads a tensor.
    """
    pool: Any = dist.distributed_c10d
    groups = list(pool._world.pg_map)
    backends = {id(b): b for group in groups for b in map(group._get_backend, group._device_types)}
    return sum(backend._get_sequence_number_for_group() for backend in backends.values())


def _read_positions(store: dist.Store, world_size: int) -> dict[int, RankPosition]:
    """Wait some seconds for the positions of all ranks; return those written, by rank."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    answered: list[int] = []
    while len(answered) < world_size and time.monotonic() < deadline:
        answered = [rank for rank in range(world_size) if store.check([f"position/{rank}"])]
        time.sleep(0.05)
    return {rank: RankPosition(**json.loads(store.get(f"position/{rank}"))) for rank in answered}


def _diagnose(positions: dict[int, RankPosition], world_size: int, timeout: float) -> tuple[RankHung, str]:
    """Return the error that names the ranks that hang, and the stacks of the ranks that answered."""
    hung = [rank for rank in range(world_size) if rank not in positions] or _ranks_behind(positions)
    named = f"rank {hung[0]} hangs" if len(hung) == 1 else f"ranks {', '.join(map(str, hung))} hang"
    where = {rank: f"is at {p.phase} ({p.location})" for rank, p in positions.items()}
    message = f"{named}: no progress for {timeout:g} s (parallel.timeout_seconds); "
    message += ", ".join(f"rank {rank} {where.get(rank, 'does not answer')}" for rank in hung)
    stacks = [f"stack of rank {rank}, at {p.phase}:\n{p.stack}" for rank, p in positions.items()]
    return RankHung(message), "\n".join(stacks)


def _ranks_behind(positions: dict[int, RankPosition]) -> list[int]:
    """Return the ranks that entered the fewest phases; of those, the ones that began the fewest collectives.

    A rank that waits has begun one more than the rank for which it waits, unless it waits in the store.
    """
    progress = {rank: (p.num_phases, p.num_collectives) for rank, p in positions.items()}
    last = [rank for rank in positions if progress[rank] == min(progress.values())]
    return [rank for rank in last if not positions[rank].is_waiting] or last


def _kill_silent_ranks(store: dist.Store, world: World, positions: dict[int, RankPosition]) -> None:
    """Kill the ranks on this machine that did not answer, because the launcher's SIGTERM would not end them."""
    for rank in set(range(world.world_size)) - positions.keys():
        pid, _, host = store.get(f"process/{rank}").decode().partition(" ")
        if host == socket.gethostname():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
