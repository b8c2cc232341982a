"""What a run is made of: its parts, built and ready, and what varies over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from hydrant.agenda import Agenda
from hydrant.averaging import Averaging
from hydrant.batch import Batch
from hydrant.clock import Clock
from hydrant.compilation import Compilation
from hydrant.data import Stream, StreamSpec
from hydrant.distributed import World
from hydrant.gallery import Gallery
from hydrant.goal import Goal
from hydrant.metrics import Meter, Pace
from hydrant.mixing import Mixing
from hydrant.optimization import Optimization
from hydrant.parallel import Parallel
from hydrant.precision import Precision
from hydrant.profiling import Profiler
from hydrant.pruning import NeverPruned, Pruning
from hydrant.trackers.base import Histogram
from hydrant.watchdog import Watchdog


@dataclass
class RunState:
    """What varies over a run and is no function of `num_updates`; saved in every checkpoint."""

    num_updates: int = 0  # completed updates
    num_skipped: int = 0  # updates that were tried and not applied: a gradient was not finite
    num_skipped_in_a_row: int = 0
    best: dict[str, Any] | None = None  # metric, value, num_updates
    is_pruned: bool = False  # the study that it is a trial of has ended the run


class Journal(Protocol):
    """Where the loop reports: the record, the trackers, the progress bar."""

    def advance(self) -> None: ...

    def log(self, row: Mapping[str, float]) -> None: ...

    def picture(self, name: str, draw: Callable[[Path], None]) -> None: ...

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None: ...


class NoJournal:
    """Nothing is told to anybody."""

    def advance(self) -> None: ...

    def log(self, row: Mapping[str, float]) -> None: ...

    def picture(self, name: str, draw: Callable[[Path], None]) -> None: ...

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None: ...


@dataclass
class Run:
    """Everything a run needs, built and ready."""

    seed: int
    world: World
    clock: Clock
    task: nn.Module  # the bare task; evaluation and checkpoints use it
    trained: nn.Module  # the task as it is trained: compiled, spread over ranks
    optimization: Optimization
    mixing: Mixing
    precision: Precision
    parallel: Parallel
    compilation: Compilation
    averaging: Averaging
    profiler: Profiler
    spec: StreamSpec
    stream: Stream
    val_batches: Callable[[], Iterable[Batch]]
    agenda: Agenda
    gallery: Gallery
    goal: Goal
    max_skipped: int  # in a row
    journal: Journal
    save: Callable[[Run, bool], None]  # (run, is_best)
    stop_signal: Callable[[], int | None]  # the signal that asked the run to stop
    state: RunState = field(default_factory=RunState)
    meter: Meter = field(init=False)
    pace: Pace = field(init=False)
    loss_weight: Tensor = field(init=False)  # of one micro-batch, shape ()
    watchdog: Watchdog = field(default_factory=Watchdog)
    followers: Sequence[Profiler | Watchdog] = field(init=False)  # of the phases; those that are on
    pruning: Pruning = field(default_factory=NeverPruned)
    stop: int | None = None  # the signal by which the ranks agreed to stop after this update

    @property
    def model(self) -> nn.Module:
        """What checkpoints hold: the model alone, its names without prefixes."""
        return cast("nn.Module", self.task.model)

    def watched_by(self, watchdog: Watchdog) -> None:
        """From now on it is told of the phases, too."""
        self.watchdog = watchdog
        self.followers = [follower for follower in (self.profiler, watchdog) if follower.is_on]

    def __post_init__(self) -> None:
        self.watched_by(self.watchdog)
        self.meter = Meter(self.world.device, self.parallel.sum)
        self.pace = Pace(self.state.num_updates)
        self.loss_weight = torch.tensor(1.0 / self.spec.num_micro_steps, device=self.world.device)
