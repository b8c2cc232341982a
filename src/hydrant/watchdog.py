"""A rank that stands still: which one it is, where, and the end of the run.

The others would wait for it for ever, or fail by what they wait in, which names everything but the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

import torch.distributed as dist

from hydrant.distributed import World
from hydrant.errors import RankHung, innermost, typed_line
from hydrant.logs import log

T = TypeVar("T")

_TICK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0  # what the other ranks get to say where they are
_STORE_SECONDS = 30.0
_START_SECONDS = 300.0  # at least: data are read and models compiled
_SEEN = "seen"
_frames: Callable[[], dict[int, FrameType]] = sys._current_frames  # pyright: ignore[reportPrivateUsage]
"""Of each thread; Python has no other name for it."""


@dataclass(frozen=True)
class Place:
    """Where a rank stands."""

    count: int  # of the phases before, which are the same on every rank
    where: str
    location: str  # file:line
    is_waiting: bool  # in torch.distributed, for the others
    stack: str


class Watchdog:
    """While it lasts, a thread sees whether the loop goes on. One rank alone waits for nobody, and has none.

    When nothing has moved for `timeout_seconds`, every rank says where it is; the one that is behind is named, in
    the log with its stack and to `tell`, and every rank ends with status 1. One that does not answer is the one, and
    is killed by those on its machine.
    """

    def __init__(
        self,
        world: World | None = None,
        timeout_seconds: float = 0.0,
        tell: Callable[[RankHung, str], None] = lambda error, stacks: None,
    ) -> None:
        self._world, self._timeout, self._tell = world, timeout_seconds, tell
        self._limit = max(timeout_seconds, _START_SECONDS)  # until the loop begins
        self._count, self._phase, self._num_updates = 0, "", 0
        self._moved_at = time.monotonic()
        self._stopped = threading.Event()
        self._main = threading.get_ident()
        self._thread: threading.Thread | None = None

    @property
    def is_on(self) -> bool:
        return self._world is not None and self._world.world_size > 1

    def enter(self, phase: str, num_updates: int) -> None:
        """The loop goes on with this phase, as it does on every rank."""
        self._count += 1
        if self._phase and num_updates > self._num_updates:  # the first update compiles
            self._limit = self._timeout
        self._phase, self._num_updates = phase, num_updates
        self._moved_at = time.monotonic()

    def alive_over(self, items: Iterable[T]) -> Generator[T]:
        """The items; each of them is a sign of life."""
        for item in items:
            self._moved_at = time.monotonic()
            yield item

    def __enter__(self) -> Watchdog:
        if self._world is not None and self._world.world_size > 1:
            store = self._world.store("watchdog")
            self._thread = threading.Thread(target=self._watch, args=(self._world, store), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """What follows may take as long as it likes."""
        self._stopped.set()
        if self._thread is not None:  # one that is in the store when Python ends would end it by SIGABRT
            self._thread.join(_STORE_SECONDS)

    def _watch(self, world: World, store: dist.Store) -> None:
        with contextlib.suppress(RuntimeError):
            store.set(_key("process", world.rank), f"{os.getpid()} {socket.gethostname()}")
        ticked_at = time.monotonic()
        while not self._stopped.wait(_TICK_SECONDS):
            now = time.monotonic()
            self._moved_at += max(
                now - ticked_at - 2 * _TICK_SECONDS, 0
            )  # all stood still that long, suspended
            ticked_at = now
            with contextlib.suppress(RuntimeError):  # the store is gone: so is who held it, and the run ends
                if time.monotonic() - self._moved_at > self._limit:
                    store.set(_SEEN, "")
                if store.check([_SEEN]):
                    self._end(world, store)

    def _end(self, world: World, store: dist.Store) -> None:
        try:
            store.set(_key("place", world.rank), json.dumps(dataclasses.asdict(self._place())))
            places = _answers(store, world.world_size)
            error, stacks = _verdict(places, world.world_size, self._limit)
            if world.rank == min(places):
                self._tell(error, stacks)
            _kill_silent(store, world, places)
        finally:
            sys.stdout.flush()
            os._exit(1)

    def _place(self) -> Place:
        stack = traceback.extract_stack(_frames()[self._main])
        file, line = innermost((frame.filename, frame.lineno) for frame in stack)
        is_waiting = "torch/distributed/" in stack[-1].filename
        told = "".join(traceback.format_list(stack))
        where = f"{self._phase} after update {self._num_updates}" if self._phase else "the start"
        return Place(self._count, where, f"{Path(file).name}:{line}", is_waiting, told)


def _key(what: str, rank: int) -> str:
    return f"{what}/{rank}"


def _answers(store: dist.Store, world_size: int) -> dict[int, Place]:
    """Where the ranks stand that say so."""
    limit = time.monotonic() + _ANSWER_SECONDS
    silent = set(range(world_size))
    while silent and time.monotonic() < limit:
        silent -= {rank for rank in silent if store.check([_key("place", rank)])}
        time.sleep(0.05)
    answered = [rank for rank in range(world_size) if rank not in silent]
    return {rank: Place(**json.loads(store.get(_key("place", rank)))) for rank in answered}


def _verdict(places: dict[int, Place], world_size: int, timeout: float) -> tuple[RankHung, str]:
    """Who is to blame, and the stacks of those who answered."""
    silent = [rank for rank in range(world_size) if rank not in places]
    hung = silent or _behind(places)
    named = f"rank {hung[0]} hangs" if len(hung) == 1 else f"ranks {', '.join(map(str, hung))} hang"
    at = {rank: f"is at {place.where} ({place.location})" for rank, place in places.items()}
    told = f"{named}: nothing has moved for {timeout:g} s (parallel.timeout_seconds); "
    told += ", ".join(f"rank {rank} {at.get(rank, 'does not answer')}" for rank in hung)
    stacks = [f"stack of rank {rank}, at {place.where}:\n{place.stack}" for rank, place in places.items()]
    return RankHung(told), "\n".join(stacks)


def _behind(places: dict[int, Place]) -> list[int]:
    """The ranks that have come least far; of those, the ones that do not wait for others."""
    least = min(place.count for place in places.values())
    last = [rank for rank, place in places.items() if place.count == least]
    return [rank for rank in last if not places[rank].is_waiting] or last


def _kill_silent(store: dist.Store, world: World, places: dict[int, Place]) -> None:
    """Whoever started the ranks would ask them to stop, and wait."""
    for rank in set(range(world.world_size)) - places.keys():
        pid, _, host = store.get(_key("process", rank)).decode().partition(" ")
        if host == socket.gethostname():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except OSError as error:
                log.debug("rank %d: %s", rank, typed_line(error))
