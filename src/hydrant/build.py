"""Config -> objects, in one visible order. The only caller of Hydra's `instantiate`.

`prepare` does everything that needs no device, so that a config that cannot run is refused before anything is
started; `build` goes on from there. The order: seed -> task -> device and dtype -> compile in place ->
wrap -> param groups -> optimizers -> schedules -> data -> trackers -> resume.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hydrant import seeding
from hydrant.averaging import Averaging
from hydrant.clipping import Clipping
from hydrant.clock import Clock
from hydrant.compilation import Compilation
from hydrant.config.refusals import refusals
from hydrant.config.targets import check_arguments
from hydrant.data import Data, Source, StreamSpec
from hydrant.distributed import World
from hydrant.errors import ConfigError
from hydrant.fitting import check_best, dry_forward, geometry, limited, scaled_lr
from hydrant.loop import Journal, Run
from hydrant.optimization import Optimization
from hydrant.parallel import Parallel
from hydrant.param_groups import check_fields, param_groups
from hydrant.precision import Precision
from hydrant.schedules import Plateau, Replay, Stepped
from hydrant.scheduling import AnySchedule, FieldSchedules, config_key
from hydrant.tasks import Task


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
    schedules: Mapping[str, AnySchedule]
    precision: Precision
    compilation: Compilation
    parallel: Parallel
    averaging: Averaging
    optimization: Optimization  # on the host: for its groups, schedules and refusals

    def schedule_values(self, updates: Sequence[int]) -> dict[str, list[float]]:
        """Every scheduled field's value in these updates, by `optimizer.group.field`."""
        return {key: [f.value(n) for n in updates] for key, f in self.optimization.schedules.fields.items()}


def prepare(config: Mapping[str, Any]) -> Prepared:
    """Build all that needs no device from a checked config.

    Raises:
        ConfigError: the config cannot run, with the key to change.
    """
    world = World.from_launcher()
    with refusals("precision", config):
        precision: Precision = _make(config, "precision")(world.device)
    with refusals("compile", config):
        compilation: Compilation = _make(config, "compile")(world.device)
    parallel = _parallel(config, world)
    data: Data = _make(config, "data")
    train = limited(data.train, config["limit_train_samples"])
    val = limited(data.val, config["limit_val_samples"])
    spec = geometry(config, world, train.num_samples)
    clock = Clock.start(
        config["duration"], num_samples=train.num_samples, global_batch_size=spec.global_batch_size
    )
    for key in ("log_every", "eval_every", "save_every"):
        clock.cadence(config[key], key)
    schedules = {
        field: _schedule(node, clock, config_key(field)) for field, node in _scheduled(config).items()
    }
    if config["patience"] is not None and config["eval_every"] is None:
        raise ConfigError("eval_every", "patience counts evaluations; give one, such as 1ep")
    task = _task(config)
    flops, outcome = dry_forward(task, data, val)
    with refusals("averaging", config):
        averaging: Averaging = _make(config, "averaging")(clock)
    splits = ("val", "val_ema") if averaging.is_on else ("val",)
    check_best("best.", config["best"]["metric"], config["best"]["mode"], splits, task, outcome)
    for field, schedule in schedules.items():
        if isinstance(schedule, Plateau):
            key = config_key(field)
            check_best(f"{key}.", schedule.metric, schedule.mode, splits, task, outcome)
            if config["eval_every"] is None:
                raise ConfigError("eval_every", f"{key} waits for evaluations; give one, such as 1ep")
    optimization = _optimization(config, task, schedules, precision)
    return Prepared(
        config, world, data, train, val, clock, spec, task, flops, schedules, precision, compilation,
        parallel, averaging, optimization,
    )  # fmt: skip


def build(
    prepared: Prepared,
    journal: Journal,
    save: Callable[[Run, bool], None],
    stop_signal: Callable[[], int | None],
) -> Run:
    """The run, on its device."""
    p, config = prepared, prepared.config
    seeding.use_deterministic_kernels(config["deterministic"])
    p.precision.activate()
    p.world.activate()
    task = p.task.to(p.world.device)
    p.averaging.start(task.model)
    p.compilation.apply(task)
    trained = p.parallel.wrap(task)
    return Run(
        seed=config["seed"],
        world=p.world,
        clock=p.clock,
        task=task,
        trained=trained,
        optimization=_optimization(config, task, p.schedules, p.precision),
        precision=p.precision,
        parallel=p.parallel,
        averaging=p.averaging,
        spec=p.spec,
        stream=p.train.stream(p.spec),
        val_batches=functools.partial(p.val.batches, p.spec, config["eval_batch_size"]),
        log_every=p.clock.cadence(config["log_every"], "log_every"),
        eval_every=p.clock.cadence(config["eval_every"], "eval_every"),
        save_every=p.clock.cadence(config["save_every"], "save_every"),
        best_metric=config["best"]["metric"],
        best_mode=config["best"]["mode"],
        patience=config["patience"],
        max_skipped=config["max_skipped"],
        journal=journal,
        save=save,
        stop_signal=stop_signal,
    )


def tracker_factory(config: Mapping[str, Any]) -> Callable[..., Any]:
    """The tracker, to be called with `(identity, num_updates)`."""
    return _make(config, "tracker")


def _task(config: Mapping[str, Any]) -> Task:
    seeding.seed_process(config["seed"], seeding.MODEL)
    with refusals("model", config):
        model: nn.Module = _make(config, "model")
    with refusals("task", config):
        return _make(config, "task")(model)


def _optimization(
    config: Mapping[str, Any], task: Any, schedules: Mapping[str, AnySchedule], precision: Precision
) -> Optimization:
    node = dict(config["optimizer"]) | scaled_lr(config)
    groups = param_groups(task, node.get("lr"), **config["param_groups"])
    _check_patterns(node, config["param_groups"]["patterns"])
    with refusals("optimizer", config):
        optimizer: Optimizer = _instantiate(node)(groups)
    check_fields(groups, optimizer.defaults, type(optimizer).__name__)
    head = frozenset(id(p) for p in list(task.model.parameters())[-2:])
    if config["agc"] is not None and all(id(p) in head for group in groups for p in group["params"]):
        raise ConfigError("agc", "spares the last layer, and there is no other; use max_grad_norm")
    clipping = Clipping(config["max_grad_norm"], config["max_grad_value"], config["agc"], head)
    fields = FieldSchedules({"main": optimizer}, {"main": schedules})
    return Optimization({"main": optimizer}, fields, precision, clipping)


def _check_patterns(node: Mapping[str, Any], patterns: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the optimizer look at the fields of each pattern as if they were its own: torch only looks at those."""
    taken = inspect.signature(_instantiate(node).func).parameters.keys()
    for title, rule in patterns.items():
        key = f"param_groups.patterns.{title}"
        own = dict(node) | {field: value for field, value in rule.items() if field in taken}
        check_arguments(key, own)
        with refusals(key, own):
            _instantiate(own)([torch.nn.Parameter(torch.zeros(2, 2))])


def _parallel(config: Mapping[str, Any], world: World) -> Parallel:
    parallel: Parallel = _make(config, "parallel")
    if world.world_size != parallel.num_processes:
        raise ConfigError(
            "parallel",
            f"the launcher started {world.world_size} ranks, but this option trains on {parallel.num_processes}; "
            "start one process",
        )
    return parallel


def _scheduled(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Every scheduled field with its scheduler; that of one group is `head/lr`."""
    groups = config["param_groups"]["patterns"]
    return {
        "lr": config["scheduler"],
        **dict(_fields(config["schedules"])),
        **{
            f"{title}/{field}": node
            for title, rule in groups.items()
            for field, node in _fields(rule.get("schedules") or {})
        },
    }


def _fields(schedules: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(`weight_decay` or `betas.0`, its scheduler): a dotted field is nested in the config."""
    for name, node in schedules.items():
        if "_target_" in node:
            yield f"{prefix}{name}", node
        else:
            yield from _fields(node, f"{prefix}{name}.")


def _schedule(node: Mapping[str, Any], clock: Clock, key: str) -> AnySchedule:
    with refusals(key, node):
        made = _instantiate(node)
        if Stepped.is_made_by(made):
            if issubclass(made.func, ReduceLROnPlateau):
                raise ConfigError(f"{key}._target_", "waits for a metric; use the option plateau instead")
            replay = functools.partial(Replay, made, total_updates=clock.total_updates)
            return Stepped(refusals(key, node)(replay))
        try:
            return made(clock)
        except ConfigError as error:
            raise ConfigError(f"{key}.{error.key}", error.reason) from error


def _make(config: Mapping[str, Any], group: str) -> Any:
    with refusals(group, config):
        return _instantiate(config[group])


def _instantiate(node: Mapping[str, Any]) -> Any:
    return instantiate(OmegaConf.create(dict(node)), _convert_="all")
