"""The result of `prepare`: the parts of a run that need no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydrant.checks import suggestion
from hydrant.clock import Clock, Intervals
from hydrant.data import Data, Source, StreamSpec
from hydrant.data.mixup import Mixing
from hydrant.errors import ConfigError
from hydrant.optimizers.ema import Averaging
from hydrant.optimizers.scheduled_fields import Schedules
from hydrant.training.compile.base import Compilation
from hydrant.training.distributed.base import Parallel
from hydrant.training.distributed.collectives import Collective
from hydrant.training.distributed.world import World
from hydrant.training.early_stopping import EarlyStopping
from hydrant.training.hooks import Hooks
from hydrant.training.precision import Precision
from hydrant.training.profiling import Profiler
from hydrant.training.splits import Split, validation_splits
from hydrant.training.update import Optimizers


@dataclass(frozen=True)
class Plan:
    """The parts of a run, built and checked on the host."""

    config: Mapping[str, Any]
    world: World
    data: Data  # of this fold, limited to the configured numbers of samples
    splits: Mapping[str, Split]  # by name: train, val, the extra validation sets, test
    clock: Clock
    spec: StreamSpec
    task: Any  # a Task, which is an nn.Module; on the host
    flops_per_sample: int  # of a forward pass in training
    uncounted: str  # what `flops_per_sample` leaves out, for users; "" if nothing
    targets_per_sample: int  # of the sample that was tried; 1 for a classification of whole samples
    collectives: Sequence[Collective]  # of a forward pass in training
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
    pictured_classes: int | None  # of the configured confusion matrix; None: the task predicts no classes
    optimizers: Optimizers  # over the task on the host, to check and show their groups and schedules
    data_files: Mapping[str, str]  # digests of the files of splits, by key of `data`

    @property
    def train(self) -> Source:
        """The training set."""
        return self.data.train

    @property
    def early_stopping(self) -> EarlyStopping:
        best, eval_every = self.config["best"], self.intervals.eval_every
        return EarlyStopping(best["metric"], best["mode"], self.config["patience"], eval_every)

    @property
    def val(self) -> Source:
        """The main validation set."""
        return self.data.val

    @property
    def validation(self) -> tuple[str, ...]:
        """The names of the splits that are evaluated while the run trains."""
        return validation_splits(self.splits)

    def check_evaluates(self, why: str) -> None:
        """Raise ConfigError, which says why, if the run has no evaluations."""
        if not self.intervals.eval_every.is_on:
            raise ConfigError("eval_every", why, remedy="give one, such as 10%")

    def check_metric(self, key: str, metric: str, reason: str = "no evaluation gives") -> None:
        """Raise ConfigError, which says why, if no evaluation gives the metric that `key` names."""
        if metric not in self.eval_metrics:
            raise ConfigError(key, f"{reason} {metric!r}", remedy=suggestion(metric, self.eval_metrics))

    def schedule_values(self, updates: Sequence[int]) -> dict[str, list[float]]:
        """Return the value of every scheduled field in each of these updates, by `optimizer.group.field`."""
        return {key: [f.value(n) for n in updates] for key, f in self.optimizers.schedules.fields.items()}
