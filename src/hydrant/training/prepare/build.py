"""Config -> `Plan` -> `Trainer`.

`prepare` builds and checks everything that needs no device, so a config that cannot run is rejected before anything
starts. `build` moves the task to its device, compiles it in place, wraps it for the ranks, and then makes the
optimizers and the stream of batches. docs/architecture.md explains the order.
"""

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import nn

from hydrant import seeding
from hydrant.clock import Clock, Intervals, UpdateSeconds
from hydrant.config.flat import flatten
from hydrant.config.instantiate import as_config_error, instantiate, instantiate_node
from hydrant.config.metric_keys import LOSS_OF_BATCH, defines
from hydrant.data import Data, PositionedSource, StreamSpec
from hydrant.data import splits as data_splits
from hydrant.data.base import Mixing, changed_statistics
from hydrant.errors import ConfigError, log, prefix_error_keys
from hydrant.files.on_disk import split_digests
from hydrant.installation import listeners
from hydrant.optimizers.ema import Averaging, infinite_in
from hydrant.optimizers.scheduled_fields import Schedules
from hydrant.safety.targets import import_targets
from hydrant.schedules import Plateau
from hydrant.tasks import Task
from hydrant.training.compilation import Compilation
from hydrant.training.costs import keep_freed_memory, reset_peak_memory
from hydrant.training.distributed.ddp import RankBuffers
from hydrant.training.distributed.world import Parallel, World
from hydrant.training.hooks import Hooks, check_methods
from hydrant.training.precision import Precision
from hydrant.training.prepare import build_optimizers, rehearsal
from hydrant.training.trainer import Plan, Trainer, TrainState


def prepare(
    config: Mapping[str, Any],
    *,
    is_preview: bool = False,
    is_alone: bool = False,
    update_seconds: Mapping[int, float] = {},
    statistics: Mapping[str, Any] = {},
) -> Plan:
    """Build everything that needs no device from a checked config.

    Args:
        config: the checked config.
        is_preview: plan for `parallel.num_processes` ranks, although this process has not started them.
        is_alone: this rank does its part of an update without the others.
        update_seconds: the measured seconds of an update by its number of samples; assumed where they are missing.
        statistics: of a checkpoint, by which the samples are prepared; empty: those of the training samples.

    Raises:
        ConfigError: the config cannot run; the error names the key to change.
    """
    import_targets(config)
    run_world = world = World.from_launcher()
    if is_preview:
        run_world = dataclasses.replace(world, world_size=config["parallel"]["num_processes"])
    if is_alone:
        world = dataclasses.replace(world, world_size=1)
    parallel: Parallel = instantiate(config, "parallel", world)
    with world.process_group():
        plan = _prepare(config, statistics, world, parallel, run_world, UpdateSeconds(update_seconds))
        plan.parallel.check(plan)
        for name, node in config["hooks"].items():
            with _hook_errors(name, node):
                plan.hooks.call("check", plan, names=[name])
        return plan


def _divided_data(config: Mapping[str, Any], statistics: Mapping[str, Any]) -> Data:
    whole: object = instantiate(config, "data")
    if not isinstance(whole, Data):
        message = f"{config['data']['_target_']} makes a {type(whole).__name__}, not a hydrant.data.Data"
        remedy = "write data=dataset, and name the class of a data set at data.train and data.val"
        raise ConfigError("data", message, remedy=remedy)
    data = data_splits.divide(config, whole)
    if statistics and whole.with_statistics is not None:
        if not (difference := changed_statistics(statistics, data.statistics)):
            return data
        message = "the training samples are not those of the run (%s): inputs are prepared as in its training"
        log.warning(message, difference)
        data = data_splits.divide(config, whole.with_statistics(statistics))
    return data


def _prepare(
    config: Mapping[str, Any],
    statistics: Mapping[str, Any],
    world: World,
    parallel: Parallel,
    run_world: World,
    seconds: UpdateSeconds,
) -> Plan:
    precision: Precision = instantiate(config, "precision", world.device)
    compilation: Compilation = instantiate(config, "compile", world)
    data = _divided_data(config, statistics)
    data.damaged.is_rank_zero = world.is_rank_zero
    task = make_task(config, data, precision)
    trials = rehearsal.Rehearsal(task, data, precision, config, run_world)
    dry = rehearsal.dry_forward(trials)
    if isinstance(data.train, PositionedSource):
        rehearsal.check_ranks_read_alike(data.train, dry, world)
    num_samples = data.train.num_samples
    spec = rehearsal.make_stream_spec(config, run_world, num_samples, dry.costs, precision.loss_dtype)
    splits = data_splits.make_splits(config, data, run_world.world_size)
    clock = Clock.start(
        config["duration"],
        num_samples=num_samples,
        batch_sizes=spec.batch_sizes,
        costs=dry.costs,
        update_seconds=seconds,
    )
    hooks = make_hooks(config["hooks"])
    intervals = make_intervals(config, clock, hooks)
    schedules = build_optimizers.make_schedules(config, clock)
    precision.check_fits(task)
    compilation.check_fits(task, dry.flops.collectives, dry.flops.derivative)
    mixing: Mixing = instantiate(config, "mixing", data.num_classes, spec.micro_batch_size)
    _rehearse_rest(trials, dry, splits, spec, mixing)
    averaging: Averaging = instantiate(config, "averaging", clock)
    averaging.infinite = infinite_in(task.model) if averaging.is_on else ()
    prefixes = data_splits.metric_prefixes(splits, is_averaged=averaging.is_on)
    _check_best(config, prefixes, schedules, dry)
    optimizers = build_optimizers.make_optimizers(config, task, schedules, precision, compilation)
    optimizers.schedules.check(clock.total_updates)
    build_optimizers.check_steps(config, task, optimizers, world.device)
    if intervals.save_every.is_on:
        rehearsal.check_saving(task, hooks)
    depends = task.loss_of_batch and defines(LOSS_OF_BATCH, config["best"]["metric"])
    size = {LOSS_OF_BATCH: splits[data_splits.VAL].batch_size} if depends else {}
    return Plan(
        config=config, world=world, parallel=parallel, precision=precision, compilation=compilation,
        data=data, identity=data_splits.DataIdentity.of(data, flatten(config) | size, split_digests(data.files)),
        splits=splits, spec=spec, mixing=mixing, task=task, flops=dry.flops,
        targets_per_sample=dry.targets_per_sample, written_buffers=dry.written_buffers, clock=clock,
        intervals=intervals, hooks=hooks, eval_metrics=rehearsal.eval_metrics(prefixes, dry), schedules=schedules,
        optimizers=optimizers, averaging=averaging, profiler=instantiate(config, "profiler", world.device, clock),
    )  # fmt: skip


def prepare_numbers(config: Mapping[str, Any], like: Plan) -> None:
    """Check a config that differs from another one in seeds, schedules, the patience and numbers of optimizers.

    Raises:
        ConfigError: the config cannot run.
    """
    schedules = build_optimizers.make_schedules(config, like.clock)
    if any(isinstance(schedule, Plateau) for schedule in build_optimizers.flat_schedules(schedules).values()):
        prepare(config, is_preview=True)  # checks its metric
        return
    make_intervals(config, like.clock, like.hooks)  # checks the patience
    kinds = like.precision, like.compilation
    optimizers = build_optimizers.make_optimizers(config, like.task, schedules, *kinds)
    optimizers.schedules.check(like.clock.total_updates)
    build_optimizers.check_steps(config, like.task, optimizers, like.world.device)


def build(plan: Plan, state: TrainState, **ends: Any) -> Trainer:
    """Build a run on its device. `ends`: fields of `Trainer`, without which it logs and saves nothing."""
    config, world = plan.config, plan.world
    _prepare_process(plan)
    task = plan.parallel.prepare(plan.precision.convert_layers(plan.task)).to(world.device)
    if uses_channels_last(config["memory_format"], task, plan.precision, plan.parallel, world.device):
        message = "two-dimensional convolutions compute in channels_last (memory_format=%s)"
        log.info(message, config["memory_format"])
        convert_to_channels_last(task)
    plan.averaging.start(cast("nn.Module", task.model))
    plan.compilation.apply(task, retains_graph=plan.optimizers.leaves_parameters_out or plan.gathers_outputs)
    is_wrapped = not plan.averages_gradients
    trained = plan.parallel.wrap(task) if is_wrapped else plan.parallel.with_first_weights(task)
    plan.averaging.shard(plan.parallel.shard)
    make_step = plan.parallel.sharing_steps(plan.compilation.optimizer_step)
    optimizers = build_optimizers.make_optimizers(
        config, task, plan.schedules, plan.precision, plan.compilation, make_step
    )
    return Trainer(
        plan=plan, state=state, task=task, trained=trained, optimizers=optimizers,
        buffers=RankBuffers(task, world.rank, world.world_size), stream=plan.data.train.stream(plan.spec), **ends,
    )  # fmt: skip


def _prepare_process(plan: Plan) -> None:
    """Set what holds for the whole process: the device, how kernels are chosen, and how memory is freed."""
    deterministic, benchmark = plan.config["deterministic"], plan.config["cudnn_benchmark"]
    seeding.use_deterministic_kernels(deterministic)
    # Let cuDNN choose the algorithms of convolutions by their time, or by a rule.
    torch.backends.cudnn.benchmark = not deterministic if benchmark == "auto" else benchmark
    plan.precision.activate()
    plan.world.set_device()
    reset_peak_memory(plan.world.device)  # of an earlier run in this process
    if plan.world.device.type == "cpu":
        keep_freed_memory()


def make_model(config: Mapping[str, Any]) -> nn.Module:
    """Return the model of a checked config, on the host, with its first weights."""
    seeding.seed_process(config["seed"], seeding.MODEL)
    return instantiate(config, "model")


def make_task(config: Mapping[str, Any], data: Data, precision: Precision) -> Any:
    task: Task = instantiate(config, "task", make_model(config))
    loaded = () if task.model.training else {*task.model.modules()}  # a model wholly in eval() trains
    frozen = [part for part in task.modules() if not part.training and part not in loaded]
    task.train()  # its own method, or the model's, may freeze parts
    for part in frozen:
        part.training = False  # its author put it into eval()
    task.measures_training = config["log_every"] is not None
    task.receive_data(data)
    return precision.prepare(task)


def _rehearse_rest(
    trials: rehearsal.Rehearsal,
    dry: rehearsal.DryForward,
    splits: Mapping[str, data_splits.Split],
    spec: StreamSpec,
    mixing: Mixing,
) -> None:
    """Try the task on samples of each split that the run evaluates besides the main one, and as it divides its batches.

    Raises:
        ConfigError: the model does not fit one, or `test_at_end` lacks a test split.
    """
    config, task, size = trials.config, trials.task, spec.micro_batch_size
    val, test = data_splits.VAL, data_splits.TEST
    evaluated = {name: splits[name] for name in data_splits.validation_splits(splits) if name != val}
    if config["test_at_end"]:
        evaluated[test] = data_splits.find_split(config, splits, test, "test_at_end")
    for name, split in evaluated.items():
        trials.evaluate(split.source, name)
    build_optimizers.check_losses(config, dry.outcome)
    is_divided = size * trials.world.world_size < max(spec.batch_sizes.values)
    if task.loss_of_batch and is_divided and not task.gathers_outputs:
        message = "splits the batch, but the loss of this task is one of the whole batch (loss_of_batch)"
        raise ConfigError("micro_batch_size", message, remedy="give null, or write outputs and assess")
    rehearsal.dry_mixing(trials, dry.train_batch, mixing)


def make_intervals(config: Mapping[str, Any], clock: Clock, hooks: Hooks) -> Intervals:
    keys = ("log_every", "eval_every", "save_every", "histogram_every")
    needed = {"save_every": "100%"} if config["test_at_end"] else {}  # for the best checkpoint
    every = [needed.get(key) if config[key] is None else config[key] for key in keys]
    intervals = Intervals(*map(clock.interval, every, keys), hooks=hooks.intervals(clock))
    clock.interval(config["keep_every"], "keep_every")  # checked here; CheckpointManager uses it
    if config["patience"] is not None and config["eval_every"] is None:
        raise ConfigError("eval_every", "patience counts evaluations", remedy="give one, such as 1ep")
    return intervals


def make_hooks(nodes: Mapping[str, Mapping[str, Any]]) -> Hooks:
    """Build the hooks of the config, and the listeners of the run.

    Raises:
        ConfigError: a hook cannot be built, or has no method that is called.
    """
    hooks: dict[str, Any] = {}
    for name, node in nodes.items():
        with _hook_errors(name, node):
            hooks[name] = instantiate_node(node)
            check_methods(f"hooks.{name}", hooks[name])
    return Hooks(hooks, listeners())


@contextmanager
def _hook_errors(name: str, node: Mapping[str, Any]) -> Generator[None]:
    key = f"hooks.{name}"
    with prefix_error_keys(f"{key}.", node), as_config_error(key, node):
        yield


def _check_best(
    config: Mapping[str, Any], prefixes: Sequence[str], schedules: Schedules, dry: rehearsal.DryForward
) -> None:
    """Check that evaluations measure the metric of the best checkpoint and those of plateau schedules."""
    rehearsal.check_best("best.", config["best"]["metric"], config["best"]["mode"], prefixes, dry)
    for key, schedule in build_optimizers.flat_schedules(schedules).items():
        if isinstance(schedule, Plateau):
            rehearsal.check_best(f"{key}.", schedule.metric, schedule.mode, prefixes, dry)
            if config["eval_every"] is None:
                message = f"{key} waits for evaluations"
                raise ConfigError("eval_every", message, remedy="give one, such as 1ep")


MemoryFormat = Literal["auto", "contiguous_format", "channels_last"]
"""A convolution computes in `channels_last` if its weight has this format, and returns its result in it.

So the layers after it receive this format too. Tensor cores read it without reordering.
"""


def uses_channels_last(
    setting: MemoryFormat, task: nn.Module, precision: Precision, parallel: Parallel, device: torch.device
) -> bool:
    """Return whether convolutions compute in `channels_last`: as configured, or where it is faster (`auto`)."""
    if setting != "auto":
        return setting == "channels_last"
    is_faster = device.type == "cuda" and precision.is_reduced and not parallel.is_sharded
    return is_faster and bool(_convolutions(task))


def convert_to_channels_last(task: nn.Module) -> None:
    """Convert the weights of the convolutions in place. Gradients and the optimizer's state get the same format."""
    for weight in _convolutions(task):
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def _convolutions(task: nn.Module) -> list[nn.Parameter]:
    convolutions = [m for m in task.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    return [p for module in convolutions for p in module.parameters(recurse=False) if p.ndim == 4]
