"""What is tried in runs without a folder: micro-batch sizes, and the time of an update."""

import contextlib
import dataclasses
import statistics
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from hydrant.clock import Duration, Interval, Intervals
from hydrant.data import PositionedSource
from hydrant.errors import ConfigError, HydrantError, OutOfMemory, log
from hydrant.training import costs, hooks
from hydrant.training.distributed.world import SINGLE_RANK, World
from hydrant.training.loop import make_update, train_update
from hydrant.training.prepare.build import build, prepare
from hydrant.training.trainer import Plan, Trainer, TrainState


def prepare_at_least(config: Mapping[str, Any], num_updates: int) -> Plan:
    """Prepare a run of at least `num_updates` updates.

    Raises:
        ConfigError: the config cannot run, or has fewer updates.
    """
    plan = prepare(config)
    total = plan.clock.total_updates
    if total < num_updates:
        message = f"the run has {total} updates, but {num_updates} are needed"
        raise ConfigError("duration", message, remedy=f"use duration={num_updates}")
    return plan


@contextlib.contextmanager
def scratch_trainer(plan: Plan, state: TrainState | None = None) -> Generator[Trainer]:
    """Build a run on its device that logs and saves nothing; close it at the end of the block."""
    with plan.world.process_group():
        trainer = build(plan, state or TrainState())
        try:
            yield trainer
        finally:
            trainer.close()


# Trials are eager: compiling for each size takes minutes, and a compiled task mostly needs less memory.
_TRIAL_SETTINGS = {
    "compile": {"_target_": "hydrant.training.Eager", "_partial_": True},
    "parallel": SINGLE_RANK,
    "profiler": {"_target_": "hydrant.training.NoProfiler", "_partial_": True},
}


def find_micro_batch_size(config: Mapping[str, Any], world: World) -> int:
    """Return the largest micro-batch size that fits with some headroom, for a config with `micro_batch_size: auto`.

    All ranks call it; rank 0 tries.

    Raises:
        ConfigError: the config cannot run, or its forward calls collectives, so that no rank can try alone.
        OutOfMemory: not even one sample fits.
    """
    plan = prepare(config)
    if plan.flops.collectives and world.world_size > 1:
        message = f"auto tries on one rank, where {plan.flops.collectives[0]} would wait for the others"
        raise ConfigError("micro_batch_size", message, remedy="give a number")
    largest, total = plan.spec.micro_batch_size, max(plan.spec.batch_sizes.values)
    size = world.broadcast_from_rank_zero(lambda: _largest_that_fits(config, largest))
    log.info("micro_batch_size=auto: %d of the %d samples of an update at once", size, total)
    return size


def _largest_that_fits(config: Mapping[str, Any], largest: int) -> int:
    first_error: Exception | None = None
    for size in (size for size in range(largest, 0, -1) if largest % size == 0):
        error = _try_size(config, size)
        if error is None:
            return size
        if first_error is None and not costs.is_out_of_memory(error):
            raise error
        if isinstance(error, HydrantError) and not isinstance(error, ConfigError):
            raise error  # a ConfigError rejects only this size, such as an odd one
        first_error = first_error or error
    message = f"micro_batch_size=auto: not even one sample fits ({costs.allocator_message(first_error)})"
    raise OutOfMemory(message, remedy="Try precision=bf16 or a smaller model") from first_error


def _try_size(config: Mapping[str, Any], size: int) -> Exception | None:
    """Make two updates, because only the second has the optimizer's state in memory; return the error, if any.

    The updates call no collectives, because a rank that runs out of memory would leave the others waiting.
    """
    try:
        plan = prepare({**config, **_TRIAL_SETTINGS, "micro_batch_size": size}, is_alone=True)
        with costs.leave_headroom(plan.world.device), scratch_trainer(plan) as trainer:
            for _ in range(min(2, plan.clock.total_updates)):
                make_update(trainer, measure=True)
    except Exception as error:
        _release_tensors(error)
        return error
    finally:
        costs.release_memory()
    return None


def _release_tensors(error: BaseException | None) -> None:
    """Clear the local variables of an error's frames, which hold tensors; keep its traceback lines."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


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
    if isinstance(plan.data.train, PositionedSource) and not plan.spec.batch_sizes.is_constant:
        message = "seconds need the time of each batch size, but a stream cannot be read from a later update"
        raise ConfigError("global_batch_size", message, remedy="give the durations in updates, ep or sa")
    never, device = Interval(None), plan.world.device
    quiet = dataclasses.replace(
        plan,
        intervals=Intervals(plan.intervals.log_every, never, never, never),
        hooks=hooks.Hooks({}),
        profiler=hooks.NoProfiler(device, plan.clock),
    )
    duration = Duration.parse(plan.config["duration"], "duration")
    wanted = float(duration.amount) * _SECONDS_RATIO if duration.unit == "s" else 0.0
    trial_seconds = min(max(wanted, _MIN_SECONDS), _MAX_SECONDS)
    try:
        with scratch_trainer(quiet) as trainer:
            plan.compilation.begin(trainer)
            trainer.state.micro_batch_size = plan.spec.micro_batch_size  # the run itself logs it
            return {size: _seconds(trainer, size, trial_seconds) for size in sizes}
    finally:  # the run begins as if it were the first
        if isinstance(plan.data.train, PositionedSource):
            plan.data.train.rewind()
        costs.release_memory()


def _seconds(trainer: Trainer, size: int, trial_seconds: float) -> float:
    """Return the seconds of an update of so many samples: the median over blocks of the mean of their updates.

    Single updates are not timed, because a wait for the device after each would slow them down. The blocks before,
    which find the number of updates in a block, also warm up. Each begins when the device has no work.
    """
    state, device, sizes = trainer.state, trainer.plan.world.device, trainer.plan.spec.batch_sizes

    def block(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            if sizes.value(state.num_updates) != size:  # go to the first update of this size
                trainer.pace.logged_at = state.num_updates = sizes.starts[sizes.values.index(size)]
            train_update(trainer, is_last=False)
        costs.synchronize(device)
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
