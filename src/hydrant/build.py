"""Config -> objects, in one visible order. The only caller of Hydra's `instantiate`.

`prepare` does everything that needs no device, so that a config that cannot run is refused before anything is
started; `build` goes on from there. The order: seed -> task -> device and dtype -> compile in place ->
wrap -> param groups -> optimizers -> schedules -> data -> trackers -> resume.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn
from torch.optim import Optimizer

from hydrant import seeding
from hydrant.batch import Outcome
from hydrant.clock import Clock
from hydrant.compilation import Compilation
from hydrant.config.refusals import refusals
from hydrant.data import Data, Source, StreamSpec
from hydrant.distributed import World
from hydrant.errors import ConfigError, location, suggestion, typed_line
from hydrant.loop import Journal, Run
from hydrant.optimization import AnySchedule, Optimization
from hydrant.parallel import Parallel
from hydrant.precision import Precision
from hydrant.profiling import count_flops
from hydrant.schedules import Plateau, Stepped
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
    optimization: Optimization  # on the host: for its groups, schedules and refusals

    def schedule_values(self, updates: Sequence[int]) -> dict[str, list[float]]:
        """Every scheduled field's value in these updates, by `optimizer.group.field`."""
        return {key: [f.value(n) for n in updates] for key, f in self.optimization.fields.items()}


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
    train = _limited(data.train, config["limit_train_samples"])
    val = _limited(data.val, config["limit_val_samples"])
    spec = _geometry(config, world, train.num_samples)
    clock = Clock.start(
        config["duration"], num_samples=train.num_samples, global_batch_size=spec.global_batch_size
    )
    for key in ("log_every", "eval_every", "save_every"):
        clock.cadence(config[key], key)
    schedules = {"lr": _schedule(config["scheduler"], clock, "scheduler")} | {
        field: _schedule(node, clock, f"schedules.{field}") for field, node in _fields(config["schedules"])
    }
    task = _task(config)
    flops, outcome = _dry_forward(task, data, val)
    _check_best(config["best"], task, outcome)
    for field, schedule in schedules.items():
        if isinstance(schedule, Plateau):
            key = "scheduler" if field == "lr" else f"schedules.{field}"
            _check_metric(f"{key}.metric", schedule.metric, task, outcome)
            if config["eval_every"] is None:
                raise ConfigError("eval_every", f"{key} waits for evaluations; give one, such as 1ep")
    optimization = _optimization(config, task, schedules, precision)
    return Prepared(
        config, world, data, train, val, clock, spec, task, flops, schedules, precision, compilation,
        parallel, optimization,
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
        spec=p.spec,
        stream=p.train.stream(p.spec),
        val_batches=functools.partial(p.val.batches, p.spec, config["eval_batch_size"]),
        log_every=p.clock.cadence(config["log_every"], "log_every"),
        eval_every=p.clock.cadence(config["eval_every"], "eval_every"),
        save_every=p.clock.cadence(config["save_every"], "save_every"),
        best_metric=config["best"]["metric"],
        best_mode=config["best"]["mode"],
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
    parameters = [p for p in task.parameters() if p.requires_grad]
    with refusals("optimizer", config):
        optimizer: Optimizer = _make(config, "optimizer")([{"params": parameters, "name": "all"}])
    return Optimization({"main": optimizer}, {"main": schedules}, precision, config["max_grad_norm"])


def _parallel(config: Mapping[str, Any], world: World) -> Parallel:
    parallel: Parallel = _make(config, "parallel")
    if world.world_size != parallel.num_processes:
        raise ConfigError(
            "parallel",
            f"the launcher started {world.world_size} ranks, but this option trains on {parallel.num_processes}; "
            "start one process",
        )
    return parallel


def _geometry(config: Mapping[str, Any], world: World, num_samples: int) -> StreamSpec:
    batch_size, micro, ranks = config["global_batch_size"], config["micro_batch_size"], world.world_size
    if batch_size > num_samples:
        limit = "" if config["limit_train_samples"] is None else " (limit_train_samples)"
        raise ConfigError(
            "global_batch_size",
            f"{batch_size} is more than the {num_samples} training samples there are{limit}; "
            f"give {num_samples} or fewer",
        )
    if batch_size % ranks:
        near = _multiples(batch_size, ranks)
        raise ConfigError("global_batch_size", f"{batch_size} is not divisible by {ranks} ranks; {near} is")
    micro = batch_size // ranks if micro is None else micro
    if batch_size % (micro * ranks):
        share = batch_size // ranks
        fitting = ", ".join(str(n) for n in range(1, share + 1) if share % n == 0)
        raise ConfigError(
            "micro_batch_size",
            f"{micro} samples on each of {ranks} rank(s) do not divide global_batch_size={batch_size}; "
            f"these do: {fitting}",
        )
    return StreamSpec(config["seed"], batch_size, micro, world.rank, ranks, world.device)


def _multiples(number: int, divisor: int) -> str:
    below = number - number % divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def _limited(source: Source, num_samples: int | None) -> Source:
    return source if num_samples is None else source.first(min(num_samples, source.num_samples))


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
            return Stepped(refusals(key, node)(made))  # when its optimizer is there
        try:
            return made(clock)
        except ConfigError as error:
            raise ConfigError(f"{key}.{error.key}", error.reason) from error


def _dry_forward(task: Any, data: Data, val: Source) -> tuple[int, Outcome]:
    """One sample through the model on the host: refuses a model that does not fit the data; counts FLOPs."""
    host = StreamSpec(0, 1, 1, 0, 1, torch.device("cpu"))
    batch = next(iter(val.first(1).batches(host, 1)))
    try:
        return count_flops(task, batch)
    except Exception as error:  # a user's model raises anything, and there is no train.log yet
        raise ConfigError(
            "model",
            f"does not take the samples of data, of shape {list(data.input_shape)}: {typed_line(error)} "
            f"(at {location(error)}). "
            "Choose another model, or set its own keys to that shape",
        ) from error


def _check_best(best: Mapping[str, str], task: Any, outcome: Outcome) -> None:
    """Refuse a deciding metric that no evaluation will give, and the highest loss as the best."""
    metric = best["metric"]
    _check_metric("best.metric", metric, task, outcome)
    if metric.removeprefix("val/") in _loss_names(outcome) and best["mode"] == "max":
        raise ConfigError("best.mode", f"{metric} is best where it is lowest; give best.mode=min")


def _check_metric(key: str, metric: str, task: Any, outcome: Outcome) -> None:
    names = {f"val/{name}" for name in (*_loss_names(outcome), *outcome.measurements, *task.metrics)}
    if metric not in names:
        raise ConfigError(key, f"no evaluation gives {metric!r}{suggestion(metric, names)}")


def _loss_names(outcome: Outcome) -> set[str]:
    return {"loss"} | (set(outcome.losses) if len(outcome.losses) > 1 else set())


def _make(config: Mapping[str, Any], group: str) -> Any:
    with refusals(group, config):
        return _instantiate(config[group])


def _instantiate(node: Mapping[str, Any]) -> Any:
    return instantiate(OmegaConf.create(dict(node)), _convert_="all")
