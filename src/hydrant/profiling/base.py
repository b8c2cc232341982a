"""What the loop tells a profiler; not to profile is the null object."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import torch

from hydrant.clock import Clock

Phase = Literal["data_wait", "forward", "backward", "optimizer", "log", "evaluation", "checkpoint", "other"]


class Profiler(Protocol):
    """Built as `profiler(device, clock)`."""

    def watching(
        self, folder: Path, num_updates: int, keep: Callable[[Path], None]
    ) -> contextlib.AbstractContextManager[None]:
        """While it lasts, the updates after `num_updates` are profiled; each file in `folder` goes to `keep`."""
        ...

    is_on: bool

    def enter(self, phase: Phase, num_updates: int) -> None:
        """What follows is of this phase, until the next one."""
        ...

    def advance(self) -> None:
        """One update is done, and all that follows from it."""
        ...


class NoProfiler:
    """Nothing is profiled."""

    is_on = False

    def __init__(self, device: torch.device, clock: Clock) -> None:
        del device, clock

    def watching(
        self, folder: Path, num_updates: int, keep: Callable[[Path], None]
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def enter(self, phase: Phase, num_updates: int) -> None: ...

    def advance(self) -> None: ...
