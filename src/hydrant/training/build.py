"""Config -> plan -> trainer, in one visible order.

`prepare` does everything that needs no device, so that a config that cannot run is rejected before anything starts;
`build` continues from there. The order: seed -> task -> device and dtype -> compile in place -> wrap ->
param groups -> optimizers -> schedules -> data -> trackers -> resume.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from hydrant import seeding
from hydrant.batch import Outcome
from hydrant.clock import Clock, Intervals
from hydrant.config.instantiate import instantiate
from hydrant.config.targets import import_targets
from hydrant.data import Data
from hydrant.data.mixup import Mixing
from hydrant.errors import ConfigError
from hydrant.optimizers.ema import Averaging
from hydrant.optimizers.scheduled_fields import Schedules
from hydrant.schedules import Plateau
from hydrant.tasks import Task
from hydrant.training.build_optimizers import (
    check_losses,
    flat_schedules,
    make_optimizers,
    make_schedules,
)
from hydrant.training.check_sharding import check_sharding
from hydrant.training.compile import Compilation, EagerStep
from hydrant.training.distributed.base import Parallel
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.distributed.world import World
from hydrant.training.dry_run import (
    check_best,
    dry_collectives,
    dry_forward,
    dry_mixing,
    eval_batch_size,
    limit_samples,
    make_stream_spec,
)
from hydrant.training.early_stopping import EarlyStopping
from hydrant.training.memory import keep_freed_memory
from hydrant.training.pictures import EvaluationPictures, check_pictures
from hydrant.training.plan import Plan
from hydrant.training.precision import Precision
from hydrant.training.profiling import Profiler
from hydrant.training.pruning import Pruning
from hydrant.training.trainer import RunLogger, Trainer, TrainState

_INTERVALS = ("log_every", "eval_every", "save_every", "histogram_every")


def prepare(config: Mapping[str, Any], *, is_preview: bool = False) -> Plan:
    """Build everything that needs no device from a checked config.

    With `is_preview` this process only looks at the run, whose number of ranks is `parallel.num_processes`.

    Raises:
        ConfigError: the config cannot run; the error names the key to change.
    """
    import_targets(config)
    world = World.from_launcher()
    parallel: Parallel = instantiate(config, "parallel", world)
    num_ranks = config["parallel"]["num_processes"] if is_preview else world.world_size
    with world.process_group():
        return _prepare(config, world, parallel, dataclasses.replace(world, world_size=num_ranks))


def _prepare(config: Mapping[str, Any], world: World, parallel: Parallel, run_world: World) -> Plan:
    precision: Precision = instantiate(config, "precision", world.device)
    compilation: Compilation = instantiate(config, "compile", world)
    data: Data = instantiate(config, "data")
    data.damaged.is_rank_zero = world.is_rank_zero
    train = limit_samples(data.train, config["limit_train_samples"])
    val = limit_samples(data.val, config["limit_val_samples"])
    spec = make_stream_spec(config, run_world, train.num_samples)
    eval_batch_size(config, run_world, val.num_samples)
    clock = Clock.start(
        config["duration"], num_samples=train.num_samples, global_batch_size=spec.global_batch_size
    )
    _check_intervals(config, clock)
    profiler: Profiler = instantiate(config, "profiler", world.device, clock)
    schedules = make_schedules(config, clock)
    task = _task(config)
    flops, outcome = dry_forward(task, data, val)
    check_losses(config, outcome)
    check_pictures(config, outcome, data.num_classes)
    precision.check_fits(task)
    compilation.check_fits(task, dry_collectives(task, train) if compilation.is_on else [])
    mixing: Mixing = instantiate(config, "mixing", data.num_classes, spec.micro_batch_size)
    dry_mixing(task, train, mixing)
    averaging = _averaging(config, clock, precision)
    _check_best(config, averaging, schedules, task, outcome)
    optimizers = make_optimizers(config, task, schedules, precision, lambda o, _: EagerStep(o))
    optimizers.schedules.check(clock.total_updates)
    if parallel.is_sharded:
        check_sharding(config, task, parallel, precision, compilation, optimizers)
    return Plan(
        config, world, data, train, val, clock, spec, task, flops, schedules, precision, compilation,
        parallel, averaging, mixing, profiler, optimizers,
    )  # fmt: skip


def build(
    plan: Plan,
    state: TrainState,
    *,
    logger: RunLogger,
    save: Callable[[Trainer, bool], None],
    stop_signal: Callable[[], int | None],
    pruning: Pruning,
    watchdog: Watchdog,
) -> Trainer:
    """Build a run on its device. The arguments are described in `Trainer`."""
    config = plan.config
    _configure_process(plan)
    task = plan.parallel.prepare(plan.precision.prepare(plan.task)).to(plan.world.device)
    plan.averaging.start(cast("nn.Module", task.model))
    plan.compilation.apply(task, retains_graph=plan.optimizers.retains_graph)
    trained = plan.parallel.wrap(task)
    plan.averaging.shard(plan.parallel.shard)
    batch_size = eval_batch_size(config, plan.world, plan.val.num_samples)
    intervals = Intervals(**{key: plan.clock.interval(config[key], key) for key in _INTERVALS})
    best = config["best"]
    return Trainer(
        plan,
        state,
        task,
        trained,
        make_optimizers(config, task, plan.schedules, plan.precision, plan.compilation.optimizer_step),
        stream=plan.train.stream(plan.spec),
        val_batches=functools.partial(plan.val.batches, plan.spec, batch_size),
        intervals=intervals,
        pictures=EvaluationPictures(config["pictures"], plan.data.num_classes, plan.world.device),
        early_stopping=EarlyStopping(best["metric"], best["mode"], config["patience"], intervals.eval_every),
        max_skipped=config["max_skipped"],
        logger=logger,
        save=save,
        stop_signal=stop_signal,
        pruning=pruning,
        watchdog=watchdog,
    )


def _configure_process(plan: Plan) -> None:
    """Set torch's process-wide options for this run."""
    seeding.use_deterministic_kernels(plan.config["deterministic"])
    plan.precision.activate()
    plan.world.set_device()
    if plan.world.device.type == "cpu":
        keep_freed_memory()


def _task(config: Mapping[str, Any]) -> Task:
    seeding.seed_process(config["seed"], seeding.MODEL)
    model: nn.Module = instantiate(config, "model")
    task: Task = instantiate(config, "task", model)
    task.measures_training = config["log_every"] is not None
    return task


def _averaging(config: Mapping[str, Any], clock: Clock, precision: Precision) -> Averaging:
    averaging: Averaging = instantiate(config, "averaging", clock)
    if averaging.is_on and not precision.keeps_float32:
        message = "the average of bfloat16 weights would not move; use precision=bf16, or averaging=none"
        raise ConfigError("averaging", message)
    return averaging


def _check_intervals(config: Mapping[str, Any], clock: Clock) -> None:
    for key in (*_INTERVALS, "keep_every"):
        clock.interval(config[key], key)
    if config["patience"] is not None and config["eval_every"] is None:
        raise ConfigError("eval_every", "patience counts evaluations; give one, such as 1ep")


def _check_best(
    config: Mapping[str, Any], averaging: Averaging, schedules: Schedules, task: Task, outcome: Outcome
) -> None:
    """Check that evaluations measure the metric of the best checkpoint and those of plateau schedules."""
    splits = ("val", "val_ema") if averaging.is_on else ("val",)
    check_best("best.", config["best"]["metric"], config["best"]["mode"], splits, task, outcome)
    for key, schedule in flat_schedules(schedules).items():
        if isinstance(schedule, Plateau):
            check_best(f"{key}.", schedule.metric, schedule.mode, splits, task, outcome)
            if config["eval_every"] is None:
                raise ConfigError("eval_every", f"{key} waits for evaluations; give one, such as 1ep")
