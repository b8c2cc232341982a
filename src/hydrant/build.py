"""Config -> objects, in one visible order.

`prepare` does everything that needs no device, so that a config that cannot run is refused before anything is
started; `build` goes on from there. The order: seed -> task -> device and dtype -> compile in place ->
wrap -> param groups -> optimizers -> schedules -> data -> trackers -> resume.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from hydrant import seeding
from hydrant.agenda import Agenda
from hydrant.allocation import keep_freed_memory
from hydrant.averaging import Averaging
from hydrant.batch import Outcome
from hydrant.clock import Clock
from hydrant.compilation import Compilation, EagerUpdate
from hydrant.config.refusals import refusals
from hydrant.config.targets import import_targets
from hydrant.data import Data, Source, StreamSpec
from hydrant.distributed import World
from hydrant.errors import ConfigError
from hydrant.fitting import (
    check_best,
    dry_collectives,
    dry_forward,
    dry_mixing,
    eval_batch_size,
    geometry,
    limited,
)
from hydrant.gallery import Gallery, check_pictures
from hydrant.goal import Goal
from hydrant.making import make
from hydrant.making.optimization import (
    Schedules,
    check_losses,
    flat_schedules,
    make_optimization,
    make_schedules,
)
from hydrant.making.sharding import check_sharding
from hydrant.mixing import Mixing
from hydrant.optimization import Optimization
from hydrant.parallel import Parallel
from hydrant.parts import Journal, Run
from hydrant.precision import Precision
from hydrant.profiling import Profiler
from hydrant.schedules import Plateau
from hydrant.tasks import Task

_CADENCES = ("log_every", "eval_every", "save_every", "histogram_every")


@dataclass(frozen=True)
class Prepared:
    """A run before it touches a device."""

    config: Mapping[str, Any]
    world: World
    data: Data
    train: Source
    val: Source
    clock: Clock
    spec: StreamSpec
    task: Any  # a Task, which is an nn.Module; on the host
    flops_per_sample: int  # forward
    schedules: Schedules
    precision: Precision
    compilation: Compilation
    parallel: Parallel
    averaging: Averaging
    mixing: Mixing
    profiler: Profiler
    optimization: Optimization  # on the host: for its groups, schedules and refusals

    def schedule_values(self, updates: Sequence[int]) -> dict[str, list[float]]:
        """Every scheduled field's value in these updates, by `optimizer.group.field`."""
        return {key: [f.value(n) for n in updates] for key, f in self.optimization.schedules.fields.items()}


def prepare(config: Mapping[str, Any], *, is_plan: bool = False) -> Prepared:
    """Build all that needs no device from a checked config.

    A plan is for as many ranks as the run will have, which this process only looks at.

    Raises:
        ConfigError: the config cannot run, with the key to change.
    """
    import_targets(config)
    world = World.from_launcher()
    with refusals("parallel", config):
        parallel: Parallel = make(config, "parallel")(world)
    num_ranks = config["parallel"]["num_processes"] if is_plan else world.world_size
    with world.group():
        return _prepare(config, world, parallel, dataclasses.replace(world, world_size=num_ranks))


def _prepare(config: Mapping[str, Any], world: World, parallel: Parallel, planned: World) -> Prepared:
    with refusals("precision", config):
        precision: Precision = make(config, "precision")(world.device)
    with refusals("compile", config):
        compilation: Compilation = make(config, "compile")(world)
    data: Data = make(config, "data")
    train = limited(data.train, config["limit_train_samples"])
    val = limited(data.val, config["limit_val_samples"])
    spec = geometry(config, planned, train.num_samples)
    clock = Clock.start(
        config["duration"], num_samples=train.num_samples, global_batch_size=spec.global_batch_size
    )
    eval_batch_size(config, planned, val.num_samples)
    _check_cadences(config, clock)
    with refusals("profiler", config):
        profiler: Profiler = make(config, "profiler")(world.device, clock)
    schedules = make_schedules(config, clock)
    task = _task(config)
    flops, outcome = dry_forward(task, data, val)
    check_losses(config, outcome)
    check_pictures(config, outcome, data.num_classes)
    precision.check_fits(task)
    compilation.check_fits(task, dry_collectives(task, train) if compilation.is_on else [])
    with refusals("mixing", config):
        mixing: Mixing = make(config, "mixing")(data.num_classes, spec.micro_batch_size)
    dry_mixing(task, train, mixing)
    averaging = _averaging(config, clock, precision)
    _check_best(config, averaging, schedules, task, outcome)
    optimization = make_optimization(config, task, schedules, precision, lambda o, _: EagerUpdate(o))
    optimization.schedules.check(clock.total_updates)
    if parallel.is_sharded:
        check_sharding(config, task, parallel, precision, compilation, optimization)
    return Prepared(
        config, world, data, train, val, clock, spec, task, flops, schedules, precision, compilation,
        parallel, averaging, mixing, profiler, optimization,
    )  # fmt: skip


def _check_cadences(config: Mapping[str, Any], clock: Clock) -> None:
    for key in (*_CADENCES, "keep_every"):
        clock.cadence(config[key], key)
    if config["patience"] is not None and config["eval_every"] is None:
        raise ConfigError("eval_every", "patience counts evaluations; give one, such as 1ep")


def _check_best(
    config: Mapping[str, Any], averaging: Averaging, schedules: Schedules, task: Task, outcome: Outcome
) -> None:
    """What the best checkpoint, and schedules that wait, go by is measured."""
    splits = ("val", "val_ema") if averaging.is_on else ("val",)
    check_best("best.", config["best"]["metric"], config["best"]["mode"], splits, task, outcome)
    for key, schedule in flat_schedules(schedules).items():
        if isinstance(schedule, Plateau):
            check_best(f"{key}.", schedule.metric, schedule.mode, splits, task, outcome)
            if config["eval_every"] is None:
                raise ConfigError("eval_every", f"{key} waits for evaluations; give one, such as 1ep")


def _activate(prepared: Prepared) -> None:
    seeding.use_deterministic_kernels(prepared.config["deterministic"])
    prepared.precision.activate()
    prepared.world.activate()
    if prepared.world.device.type == "cpu":
        keep_freed_memory()


def build(
    prepared: Prepared,
    journal: Journal,
    save: Callable[[Run, bool], None],
    stop_signal: Callable[[], int | None],
) -> Run:
    """The run, on its device."""
    p, config = prepared, prepared.config
    _activate(p)
    task = p.parallel.prepare(p.precision.prepare(p.task)).to(p.world.device)
    p.averaging.start(cast("nn.Module", task.model))
    p.compilation.apply(task, retains_graph=p.optimization.retains_graph)
    trained = p.parallel.wrap(task)
    p.averaging.spread(p.parallel.shard)
    agenda = Agenda(**{key: p.clock.cadence(config[key], key) for key in _CADENCES})
    return Run(
        seed=config["seed"],
        world=p.world,
        clock=p.clock,
        task=task,
        trained=trained,
        optimization=make_optimization(config, task, p.schedules, p.precision, p.compilation.update_of),
        mixing=p.mixing,
        precision=p.precision,
        parallel=p.parallel,
        compilation=p.compilation,
        averaging=p.averaging,
        profiler=p.profiler,
        spec=p.spec,
        stream=p.train.stream(p.spec),
        val_batches=functools.partial(
            p.val.batches, p.spec, eval_batch_size(config, p.world, p.val.num_samples)
        ),
        agenda=agenda,
        gallery=Gallery(config["pictures"], p.data.num_classes, p.world.device),
        goal=Goal(config["best"]["metric"], config["best"]["mode"], config["patience"], agenda.eval_every),
        max_skipped=config["max_skipped"],
        journal=journal,
        save=save,
        stop_signal=stop_signal,
    )


def tracker_factory(config: Mapping[str, Any]) -> Callable[..., Any]:
    """The tracker, to be called with `(identity, num_updates)`."""
    return make(config, "tracker")


def _task(config: Mapping[str, Any]) -> Task:
    seeding.seed_process(config["seed"], seeding.MODEL)
    with refusals("model", config):
        model: nn.Module = make(config, "model")
    with refusals("task", config):
        task: Task = make(config, "task")(model)
    task.measures_training = config["log_every"] is not None
    return task


def _averaging(config: Mapping[str, Any], clock: Clock, precision: Precision) -> Averaging:
    with refusals("averaging", config):
        averaging: Averaging = make(config, "averaging")(clock)
    if averaging.is_on and not precision.keeps_float32:
        told = "the average of bfloat16 weights would not move; use precision=bf16, or averaging=none"
        raise ConfigError("averaging", told)
    return averaging
