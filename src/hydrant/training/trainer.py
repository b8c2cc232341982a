"""A run: its `Plan`, which `prepare` makes on the host, and its `Trainer`, which `build` makes on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn

from hydrant import seeding
from hydrant.batch import Batch, Tensors
from hydrant.clock import Clock, Interval, Intervals
from hydrant.data import Data, Stream, StreamSpec
from hydrant.data.base import Mixing
from hydrant.data.loader import LoaderBatches
from hydrant.data.splits import DataIdentity, Split, validation_splits
from hydrant.errors import ConfigError, suggestion
from hydrant.optimizers.ema import Averaging
from hydrant.optimizers.scheduled_fields import Schedules
from hydrant.records import Count, Digits, Seconds, Size
from hydrant.trackers import Histogram
from hydrant.training.compilation import Compilation
from hydrant.training.costs import Flops
from hydrant.training.distributed.ddp import RankBuffers
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.distributed.world import Parallel, World
from hydrant.training.hooks import HookLog, Hooks, MediaLogger, Phase, Profiler
from hydrant.training.metrics import Meter, Pace, plain_name
from hydrant.training.precision import Precision
from hydrant.training.update import Optimizers


@dataclass(frozen=True)
class EarlyStopping:
    """The metric that chooses the best checkpoint and may end a run early.

    `best` is the best evaluation so far (`metric`, `value`, `num_updates`), or None before the first one.
    """

    metric: str
    mode: str  # "max" or "min"
    patience: int | None  # evaluations in a row without a new best that end the run
    eval_every: Interval

    @property
    def judges_by(self) -> list[str]:
        """The metric and the mode, as checkpoints hold them."""
        return [self.metric, self.mode]

    def improved(
        self, best: Mapping[str, Any] | None, row: Mapping[str, float], num_updates: int
    ) -> dict[str, Any] | None:
        """Return the new best if the row holds one, else None."""
        value = row.get(self.metric)
        if value is None or not math.isfinite(value):
            return None
        if best is not None and (value <= best["value"] if self.mode == "max" else value >= best["value"]):
            return None
        return {"metric": self.metric, "value": value, "num_updates": num_updates}

    def best_of(self, rows: Iterable[Mapping[str, float]]) -> dict[str, Any] | None:
        """Return the best of these rows, None if there is none. The untrained model does not count."""
        best: dict[str, Any] | None = None
        for row in rows:
            if num_updates := int(row["num_updates"]):
                best = self.improved(best, row, num_updates) or best
        return best

    def has_stalled(self, best: Mapping[str, Any] | None, num_updates: int, since: int = 0) -> bool:
        """Return whether `patience` evaluations have followed the best one, or the update `since` without one.

        Depends on its arguments only.
        """
        if self.patience is None:
            return False
        best_at = since if best is None else best["num_updates"]
        return self.eval_every.count(num_updates) - self.eval_every.count(best_at) >= self.patience


@dataclass(frozen=True)
class Plan:
    """The parts of a run, built and checked on the host.

    `precision`, `compilation`, `averaging`, `profiler` and `hooks` have states, which change while a run trains.
    """

    config: Mapping[str, Any]
    world: World
    data: Data  # of this fold, limited to the configured numbers of samples
    splits: Mapping[str, Split]  # by name: train, val, the extra validation sets, test
    clock: Clock
    spec: StreamSpec
    task: Any  # a Task, which is an nn.Module; on the host
    flops: Flops  # of a forward pass in training
    targets_per_sample: int  # of the sample that was tried; 1 for a classification of whole samples
    written_buffers: Sequence[str]  # that training changes, besides the statistics of batch norms
    intervals: Intervals
    schedules: Schedules
    precision: Precision
    compilation: Compilation
    parallel: Parallel
    averaging: Averaging
    mixing: Mixing
    profiler: Profiler
    hooks: Hooks
    eval_metrics: frozenset[str]  # the metrics that evaluations give, such as val/accuracy
    optimizers: Optimizers  # over the task on the host, to check and show their groups and schedules
    identity: DataIdentity

    @cached_property
    def gathers_outputs(self) -> bool:
        """Whether the loss of an update is that of the outputs of several micro-batches or ranks."""
        return self.task.gathers_outputs and self.spec.micro_batch_size < max(self.spec.batch_sizes.values)

    @cached_property
    def averages_gradients(self) -> bool:
        """Whether the loop averages the gradients of ranks after the backward passes.

        DistributedDataParallel averages each once, when all weights have one, in a whole forward pass. In a turn, only
        those of one optimizer get one; a weight that follows two losses gets two; a loss of gathered outputs is no part
        of a forward pass.
        """
        follows_several = any(len(entry.losses or ()) > 1 for entry in self.optimizers.entries.values())
        return bool(self.config["update_order"]) or self.gathers_outputs or follows_several

    @cached_property
    def early_stopping(self) -> EarlyStopping:
        best, eval_every = self.config["best"], self.intervals.eval_every
        return EarlyStopping(best["metric"], best["mode"], self.config["patience"], eval_every)

    @property
    def num_best(self) -> int:
        """How many checkpoints that were the best are kept: at least one for `test_at_end`."""
        return max(self.config["keep_best"], self.config["test_at_end"])

    @property
    def validation(self) -> tuple[str, ...]:
        """The names of the splits that are evaluated while the run trains."""
        return validation_splits(self.splits)

    def check_evaluates(self, why: str, key: str = "eval_every") -> None:
        """Raise ConfigError, which says why, if the run has no evaluations, or nothing else at intervals of `key`."""
        if not getattr(self.intervals, key).is_on:
            raise ConfigError(key, why, remedy="give one, such as 10%")

    def check_metric(self, key: str, metric: str, reason: str = "no evaluation gives") -> None:
        """Raise ConfigError, which says why, if no evaluation gives the metric that `key` names."""
        if metric not in self.eval_metrics:
            raise ConfigError(key, f"{reason} {metric!r}", remedy=suggestion(metric, self.eval_metrics))


@dataclass
class TrainState:
    """Plain values that change during a run. Every checkpoint holds them, beside the states of other objects."""

    num_updates: Count = 0  # completed updates
    num_skipped: Count = 0  # updates that were tried but not applied, because a gradient was not finite
    num_skipped_in_a_row: Count = 0
    best: dict[str, Any] | None = None  # metric, value, num_updates
    validated_since: Count = 0  # the update from which on the same samples validate the run
    is_pruned: bool = False  # the pruner of an Optuna study ended the run
    end_reason: str | None = None  # why a hook ended the run
    micro_batch_size: Size | None = None  # of the last update; None before the first
    update_seconds: dict[Digits, Seconds] = field(default_factory=dict[str, float])
    """The seconds of an update by its number of samples, in digits; measured if durations are in seconds."""


class RunLogger(MediaLogger):
    """Receives what the loop reports, for the run folder, the tracker and the progress bar; this one discards it."""

    def advance(self) -> None:
        """Count one update."""

    def log(self, row: Mapping[str, float]) -> None: ...

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None: ...


@dataclass
class Trainer:
    """Everything that a run trains with. `plan` holds the parts that were built on the host.

    The task of `plan` may still be the one on the host: use `task`, or `trained` for a training forward.
    """

    plan: Plan
    state: TrainState
    task: nn.Module  # not wrapped: for evaluation and checkpoints
    trained: nn.Module  # the task as training calls it: compiled, wrapped for its ranks
    optimizers: Optimizers
    stream: Stream
    buffers: RankBuffers
    logger: RunLogger = field(default_factory=RunLogger)
    save: Callable[[Trainer, bool], None] = lambda trainer, is_best: None
    stop_signal: Callable[[], int | None] = lambda: None  # the signal that this process received, if any
    watchdog: Watchdog = field(default_factory=Watchdog)

    def __post_init__(self) -> None:
        device = self.plan.world.device
        self.log = HookLog()
        all_reduce = self.plan.parallel.all_reduce
        self.carried = list[Tensors]()  # `Outcome.carried` of this rank's micro-batches in the last update
        self.losses = dict[str, None]()  # the names of those that turns have returned
        self.meters = {turn.name: Meter(device, all_reduce) for turn in self.optimizers.turns}
        self.pace = Pace(self.state.num_updates, device)
        self.forward = self.plan.precision.around(self.plan.compilation.forward_train)
        """The forward pass of a micro-batch, in the precision of the run."""
        self.num_micro_steps = self.plan.spec.num_micro_steps(self.state.num_updates)
        self.loss_weight = torch.tensor(
            1.0 / self.num_micro_steps, dtype=self.plan.precision.loss_dtype, device=device
        )
        """The weight of a micro-batch with the usual number of targets, shape ()."""
        self.is_continued = self.state.num_updates > 0  # from a checkpoint
        self._kept_batches = dict[str, LoaderBatches]()
        self._mixes = bool(self.plan.mixing)
        self.phase_observers = [o for o in (self.plan.profiler, self.watchdog) if o.is_on]

    @property
    def meter(self) -> Meter:
        """Measures what the optimizers update by; the first one, where they take turns."""
        return next(iter(self.meters.values()))

    @property
    def model(self) -> nn.Module:
        """The model of the task, which checkpoints hold: its names have no prefix."""
        return cast("nn.Module", self.task.model)

    def first_batch(self) -> Batch:
        """Return this rank's first micro-batch of the next update, mixed."""
        plan, num_updates = self.plan, self.state.num_updates
        batch = next(iter(self.stream.micro_batches(num_updates)))
        return plan.mixing(batch, plan.spec.seed, num_updates, plan.world.rank)

    def begin_micro_step(self, batch: Batch, micro_step: int) -> Batch:
        """Return a micro-batch of this rank mixed; give the task what it carries, and torch the seed."""
        plan, world = self.plan, self.plan.world
        position = plan.spec.seed, self.state.num_updates, micro_step * world.world_size + world.rank
        if self._mixes:
            batch = plan.mixing(batch, *position)
        if self.carried:
            cast("Any", self.task).carried = self.carried[micro_step]
        seeding.seed_micro_step(*position, world.device)
        return batch

    def first_non_finite(self) -> str | None:
        """Return the first mean since the last log point that is NaN or infinite on this rank; synchronises."""
        return next(filter(None, (meter.first_non_finite() for meter in self.meters.values())), None)

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
        """Set the weight of a micro-batch in an update of so many, whose places carry nothing from one of others."""
        self.carried = []
        self.num_micro_steps = num_micro_steps
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
