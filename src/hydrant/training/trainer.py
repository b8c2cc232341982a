"""A run on its device: what is built, and what changes while it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.data import Stream
from hydrant.data.loader import LoaderBatches
from hydrant.trackers.base import Histogram
from hydrant.training.distributed.buffers import RankBuffers
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.early_stopping import EarlyStopping
from hydrant.training.hook_log import HookLog, MediaLogger
from hydrant.training.metric_values import plain_name
from hydrant.training.metrics import Meter, Pace
from hydrant.training.pictures import EvaluationPictures
from hydrant.training.plan import Plan
from hydrant.training.profiling import Phase, Profiler
from hydrant.training.pruning import Pruning
from hydrant.training.splits import Split
from hydrant.training.update import Optimizers


@dataclass
class TrainState:
    """What changes during a run and is not a function of `num_updates`. Every checkpoint holds it."""

    num_updates: int = 0  # completed updates
    num_skipped: int = 0  # updates that were tried but not applied, because a gradient was not finite
    num_skipped_in_a_row: int = 0
    best: dict[str, Any] | None = None  # metric, value, num_updates
    validated_since: int = 0  # the update from which on the same samples validate the run
    is_pruned: bool = False  # the pruner of an Optuna study ended the run
    end_reason: str | None = None  # why a hook ended the run
    micro_batch_size: int | None = None  # of the last update; None before the first
    update_seconds: dict[str, float] = field(default_factory=dict[str, float])
    """The seconds of an update by its number of samples, in digits; measured if durations are in seconds."""


class RunLogger(MediaLogger):
    """Receives what the loop reports, for the run folder, the tracker and the progress bar; this one discards it."""

    def advance(self) -> None:
        """Count one update."""

    def log(self, row: Mapping[str, float]) -> None: ...

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None: ...


@dataclass
class Trainer:
    """Everything that a run trains with. `plan` holds the parts that do not depend on the device.

    The task of `plan` may still be the one on the host: use `task`, or `trained` for a training forward.
    """

    plan: Plan
    state: TrainState
    task: nn.Module  # not wrapped: for evaluation and checkpoints
    trained: nn.Module  # the task as training calls it: compiled, wrapped for its ranks
    optimizers: Optimizers
    stream: Stream
    pictures: EvaluationPictures
    early_stopping: EarlyStopping
    logger: RunLogger
    save: Callable[[Trainer, bool], None]  # (trainer, is_best)
    stop_signal: Callable[[], int | None]  # the signal that this process received, if any
    pruning: Pruning
    watchdog: Watchdog
    log: HookLog = field(init=False, default_factory=HookLog)
    meter: Meter = field(init=False)
    pace: Pace = field(init=False)
    # The weight of a micro-batch with the usual number of targets, shape ().
    loss_weight: Tensor = field(init=False)
    # The forward pass of a micro-batch, in the precision of the run.
    forward: Callable[[nn.Module, Batch], Outcome] = field(init=False)
    _num_micro_steps: int = field(init=False)  # `loss_weight` is 1 / this
    buffers: RankBuffers = field(init=False)
    phase_observers: list[Profiler | Watchdog] = field(init=False)
    _kept_batches: dict[str, LoaderBatches] = field(init=False, default_factory=dict[str, LoaderBatches])

    def __post_init__(self) -> None:
        device = self.plan.world.device
        self.meter = Meter(device, self.plan.parallel.all_reduce)
        self.pace = Pace(self.state.num_updates, device)
        self.forward = self.plan.precision.around(self.plan.compilation.forward_train)
        self._num_micro_steps = self.plan.spec.num_micro_steps(self.state.num_updates)
        self.loss_weight = torch.tensor(
            1.0 / self._num_micro_steps, dtype=self.plan.precision.loss_dtype, device=device
        )
        self.buffers = RankBuffers(self.task, self.plan.world.rank, self.plan.world.world_size)
        self.phase_observers = [o for o in (self.plan.profiler, self.watchdog) if o.is_on]

    @property
    def model(self) -> nn.Module:
        """The model of the task, which checkpoints hold: its names have no prefix."""
        return cast("nn.Module", self.task.model)

    def first_batch(self) -> Batch:
        """Return this rank's first micro-batch of the next update, mixed."""
        plan, num_updates = self.plan, self.state.num_updates
        batch = next(iter(self.stream.micro_batches(num_updates)))
        return plan.mixing(batch, plan.spec.seed, num_updates, plan.world.rank)

    def evaluation_batches(self, split: Split) -> Iterable[Batch]:
        """Return the batches of a pass over a split. Its data workers are kept for the next pass."""
        batches = self._kept_batches.get(split.prefix)
        if batches is None:
            batches = split.source.batches(self.plan.spec, split.batch_size)
            if isinstance(batches, LoaderBatches):
                self._kept_batches[split.prefix] = batches
        return batches

    def close(self) -> None:
        """Stop all data workers."""
        self.stream.close()
        for batches in self._kept_batches.values():
            batches.close()

    def weigh_losses(self, num_micro_steps: int) -> None:
        """Set the weight of a micro-batch in an update of so many."""
        if num_micro_steps != self._num_micro_steps:
            self._num_micro_steps = num_micro_steps
            self.loss_weight.fill_(1.0 / num_micro_steps)

    def end(self, reason: str) -> None:
        """End the run after this update, evaluated, saved and finished. A run makes at least one update.

        All ranks must call this alike.

        `reason` stands in the log and in summary.json. If several hooks end the run, the first reason counts.
        """
        self.state.end_reason = self.state.end_reason or plain_name(reason)

    def enter(self, phase: Phase) -> None:
        """Tell the profiler and the watchdog that a phase of the loop begins; it lasts until the next one."""
        for observer in self.phase_observers:
            observer.enter(phase, self.state.num_updates)
