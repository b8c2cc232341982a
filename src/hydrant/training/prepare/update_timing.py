"""Measure how long an update of a run takes, in a run without a folder before the run itself."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence

from hydrant.clock import Duration, Interval, Intervals
from hydrant.data import IterableSource
from hydrant.errors import ConfigError
from hydrant.training.hooks import Hooks
from hydrant.training.loop import train_update
from hydrant.training.memory import release_memory
from hydrant.training.plan import Plan
from hydrant.training.prepare.scratch import scratch_trainer
from hydrant.training.prepare.verify_compile import try_compiled
from hydrant.training.profiling import NoProfiler, synchronize
from hydrant.training.trainer import Trainer

_NUM_WARMUP = 5  # updates that compile, allocate and fill the queues of data workers
_NUM_BLOCKS = 9  # of consecutive updates, whose median counts
_SECONDS_RATIO = 0.02  # of the run, for which its updates are timed
_MIN_SECONDS, _MAX_SECONDS = 1.0, 20.0


def time_updates(plan: Plan, sizes: Sequence[int]) -> dict[int, float]:
    """Return the seconds of an update for these batch sizes of a plan, the same on every rank. All ranks call it.

    The updates are those of training with its rows of metrics, but without hooks, evaluations, checkpoints and
    trackers. The plan is used up.

    Raises:
        ConfigError: the data are a stream and its batch size changes, so that later updates cannot be tried.
    """
    starts = dict(
        zip(reversed(plan.spec.batch_sizes.values), reversed(plan.spec.batch_sizes.starts), strict=True)
    )
    if isinstance(plan.train, IterableSource) and len(starts) > 1:
        message = "seconds need the time of each batch size, but a stream cannot be read from a later update"
        raise ConfigError("global_batch_size", message, remedy="give the durations in updates, ep or sa")
    never, device = Interval(None), plan.world.device
    quiet = dataclasses.replace(
        plan,
        intervals=Intervals(plan.intervals.log_every, never, never, never),
        hooks=Hooks({}),
        profiler=NoProfiler(device, plan.clock),
    )
    try:
        with scratch_trainer(quiet) as trainer:
            try_compiled(trainer)
            trainer.state.micro_batch_size = plan.spec.micro_batch_size  # the run itself logs it
            return {size: _seconds(trainer, starts[size], _trial_seconds(plan)) for size in sizes}
    finally:
        _release(plan)


def _trial_seconds(plan: Plan) -> float:
    duration = Duration.parse(plan.config["duration"], "duration")
    wanted = float(duration.amount) * _SECONDS_RATIO if duration.unit == "s" else 0.0
    return min(max(wanted, _MIN_SECONDS), _MAX_SECONDS)


def _seconds(trainer: Trainer, start: int, trial_seconds: float) -> float:
    """Return the seconds of an update from `start` on: the median over blocks of the mean of their updates.

    Single updates are not timed, because a wait for the device after each would slow them down. The blocks before,
    which find the number of updates in a block, also warm up. Each begins when the device has no work.
    """
    trainer.state.num_updates = start

    def block(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            train_update(trainer, is_last=False)
        synchronize(trainer.plan.world.device)
        return (time.perf_counter() - began) / count

    def of_rank_zero(value: float) -> float:
        return trainer.plan.world.broadcast_from_rank_zero(lambda: value)

    count = _NUM_WARMUP
    seconds = block(count)
    while of_rank_zero(seconds * count) < trial_seconds / _NUM_BLOCKS:
        count *= 2
        seconds = block(count)
    median = statistics.median(block(count) for _ in range(_NUM_BLOCKS))
    return of_rank_zero(float(f"{median:.6g}"))


def _release(plan: Plan) -> None:
    """Give back what the updates have used, so that the run begins as if it were the first."""
    if isinstance(plan.train, IterableSource):
        plan.train.items.rewind()
    release_memory()
