"""The interface between the training loop and a profiler, and the profiler that does nothing."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from hydrant.clock import Clock

Phase = Literal["data_wait", "forward", "backward", "optimizer", "log", "evaluation", "checkpoint", "other"]


class Profiler:
    """Profiles a window of the updates of a run; this one nothing. Built as `profiler(device, clock)`."""

    is_on = False

    def record(
        self, folder: Path, num_updates: int, on_file: Callable[[Path], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a run trains.

        Args:
            folder: where the profile is written.
            num_updates: completed updates when the context is entered.
            on_file: called with each file after it is written.
        """
        return contextlib.nullcontext()

    def enter(self, phase: Phase, num_updates: int) -> None:
        """Mark the beginning of a phase, which lasts until the next call."""

    def advance(self) -> None:
        """Mark the end of an update, including its logging, evaluation and checkpoint."""


class NoProfiler(Profiler):
    """Profiles nothing."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        del device, clock
