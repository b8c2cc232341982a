"""Save and restore the state of a run, on the same or another number of ranks."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.config.flat import flatten
from hydrant.data import IterableSource, PositionedStream, Source
from hydrant.data.base import Data, changed_statistics
from hydrant.errors import CheckpointError, ConfigError, HydrantError, typed_line
from hydrant.optimizers.kernels import KERNEL_FIELDS
from hydrant.optimizers.norms import is_sharded
from hydrant.training.checkpoint.content import Checkpoint, Owner, SavedCheckpoint, read_into, weight_parts
from hydrant.training.checkpoint.manifest import TRAINING, count
from hydrant.training.checkpoint.tree import split
from hydrant.training.metrics import merge_meters
from hydrant.training.plan import Plan
from hydrant.training.trainer import Trainer, TrainState
from hydrant.training.update import Optimizers

log = logging.getLogger("hydrant")

_VALIDATION = ("data.val", "data.extra_val.", "data.split_seed", "folds", "fold", "limit_val_samples")
"""The beginnings of the keys that choose the samples of evaluations."""


@contextmanager
def checkpoint_content(trainer: Trainer) -> Generator[Checkpoint]:
    """Yield everything that is not a function of `num_updates`. Copy it inside the block."""
    optimizers = trainer.optimizers.state_dict()
    names = _parameter_names(trainer.task)
    for name, entry in trainer.optimizers.entries.items():
        parameters = [names[id(p)] for p in entry.parameters]
        named = _by_name(optimizers["optimizers"][name], parameters)
        optimizers["optimizers"][name] = {"type": type(entry.optimizer).__name__, **named}
    class_names = trainer.plan.data.class_names
    of_rank = {"meter": _on_host(trainer.meter.state_dict()), "host": seeding.host_state()}
    training = {
        "optimization": optimizers,
        "precision": trainer.plan.precision.state_dict(),
        "state": dataclasses.asdict(trainer.state),
        "judged_by": trainer.early_stopping.judges_by,
        "validated_by": validation_of(trainer.plan),
        "task": _state_outside_model(trainer.task),
        "hooks": trainer.plan.hooks.state_dict(),
        "stream": _stream_position(trainer),
        "class_names": None if class_names is None else list(class_names),
        "statistics": dict(trainer.plan.data.statistics),
        "samples": num_samples(trainer.plan.data),
        "ranks": trainer.plan.world.all_gather(of_rank),
    }
    with trainer.optimizers.eval_weights():
        averages = trainer.plan.averaging.state_dict()
        yield Checkpoint(trainer.model.state_dict(), training, averages, _optimizer_owner(trainer))


def check_stream(source: Source, *, is_continued: bool) -> None:
    """Check that the position of a stream of training samples can be saved, and restored if the run continues.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(source, IterableSource):
        return
    items = source.items
    if is_continued and not items.has_state:
        message = (
            f"{items.key} has no state_dict and load_state_dict, so its position in the checkpoint is unknown"
        )
        raise ConfigError("resume", f"{message}; add both methods, or start a new run in another folder")
    try:
        split(items.first_state, {})
    except CheckpointError as error:
        message = (
            f"state_dict() returns what checkpoints cannot hold: {error}; give numbers, strings, lists, dicts"
        )
        raise ConfigError(items.key, f"{message} or tensors") from error


def saved_class_names(saved: SavedCheckpoint) -> tuple[str, ...] | None:
    """Return the names of the classes that the run of a checkpoint learned; None if they are unknown.

    Raises:
        CheckpointError: they cannot be read.
    """
    names = saved.plain_state("class_names", default=None)
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CheckpointError(f"{saved.path / TRAINING} holds class names that are not texts")
    return None if names is None else tuple(names)


def check_class_names(saved: SavedCheckpoint, names: Sequence[str] | None, *, key: str, remedy: str) -> None:
    """Check that the classes of the data are those that the run of a checkpoint learned, if both are known.

    Raises:
        ConfigError: a class has another name, or there are more or fewer.
    """
    learned = saved_class_names(saved)
    if names is None or learned is None or tuple(names) == learned:
        return
    if len(names) == len(learned):
        number = next(n for n, name in enumerate(names) if name != learned[n])
        difference = f"class {number} was {learned[number]!r} and is now {names[number]!r}"
    else:
        difference = f"there were {len(learned)} classes, and now there are {len(names)}"
    raise ConfigError(key, f"the data have other classes than the run learned: {difference}; {remedy}")


def saved_statistics(saved: SavedCheckpoint) -> Mapping[str, Any]:
    """Return what prepared the samples of the run of a checkpoint; empty if it is unknown.

    Raises:
        CheckpointError: it cannot be read.
    """
    statistics = saved.plain_state("statistics", default={})
    if not isinstance(statistics, dict):
        raise CheckpointError(f"{saved.path / TRAINING} holds no statistics of the data")
    return statistics


def check_statistics(saved: SavedCheckpoint, statistics: Mapping[str, Any], *, is_strict: bool) -> None:
    """Check that the training samples have the statistics that prepared those of a checkpoint, if both are known.

    Raises:
        ConfigError: they differ by more than rounding; without `is_strict`, a warning says so.
    """
    learned = saved_statistics(saved)
    if not (learned and statistics and (difference := changed_statistics(learned, statistics))):
        return
    message = f"the training samples have changed: {difference}"
    if is_strict:
        remedy = "restore the file, or continue with the new samples: resume_strict=false"
        raise ConfigError("data", f"{message}; {remedy}")
    log.warning("%s; the run continues with the new samples", message)


def num_samples(data: Data) -> dict[str, int]:
    """Return how many samples a run trains and validates on, by split. The test split belongs to no update."""
    splits = {
        "train": data.train,
        "val": data.val,
        **{f"val/{name}": s for name, s in data.extra_val.items()},
    }
    return {name: source.num_samples for name, source in splits.items()}


def validation_of(plan: Plan) -> dict[str, Any]:
    """Return which samples validate a run: values that are measured on others do not compare."""
    counts = {name: count for name, count in num_samples(plan.data).items() if name != "train"}
    keys = {key: value for key, value in flatten(plan.config).items() if key.startswith(_VALIDATION)}
    return counts | keys


def check_samples(saved: SavedCheckpoint, data: Data, *, is_strict: bool) -> None:
    """Check that the splits have as many samples as those of a checkpoint: the order of all depends on their number.

    Raises:
        ConfigError: they have more or fewer; without `is_strict`, a warning says so.
    """
    was = saved.plain_state("samples", default={})
    if not was or (difference := changed_statistics(was, num_samples(data), "the number of samples")) is None:
        return
    if is_strict:
        remedy = "restore the files, or continue with the new samples: resume_strict=false"
        raise ConfigError("data", f"{difference}; {remedy}")
    log.warning("%s; the run continues with the new samples", difference)


def _stream_position(trainer: Trainer) -> dict[str, Any]:
    """Return the position in a stream of samples, the same on every rank; empty if the update determines it."""
    stream = trainer.stream
    return stream.state_dict(trainer.state.num_updates) if isinstance(stream, PositionedStream) else {}


def saved_state(saved: SavedCheckpoint) -> TrainState:
    """Return the TrainState in a checkpoint.

    Raises:
        CheckpointError: it has other fields, or values that no run has.
    """
    try:
        state = TrainState(**saved.plain_state("state"))
        best = {"metric": "", "value": 0.0, "num_updates": 0} if state.best is None else state.best
        size = 1 if state.micro_batch_size is None else state.micro_batch_size
        is_possible = (
            count(state.num_updates) == saved.manifest.num_updates >= count(best["num_updates"])
            and state.num_updates >= count(state.validated_since)
            and count(state.num_skipped) >= count(state.num_skipped_in_a_row)
            and count(size) > 0
            and isinstance(best["metric"], str)
            and isinstance(best["value"], int | float)
            and state.is_pruned in (False, True)
            and type(state.end_reason) in (str, NoneType)
            and all(
                count(int(size)) and 0 < seconds < math.inf
                for size, seconds in dict(state.update_seconds).items()
            )
        )
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{saved.path / TRAINING} cannot be read ({typed_line(error)})") from error
    if not is_possible:
        raise CheckpointError(f"{saved.path / TRAINING} holds an impossible state of a run")
    return state


@contextmanager
def _explain_misfit(path: Path) -> Generator[None]:
    """Raise a CheckpointError, whatever error the content of a checkpoint causes."""
    try:
        yield
    except HydrantError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit this run: {typed_line(error)}") from error


def check_optimizers(checkpoint: SavedCheckpoint, task: nn.Module, optimizers: Optimizers) -> None:
    """Check that a checkpoint's optimizers have the same types and param groups as this run's.

    Raises:
        ConfigError: they differ.
        CheckpointError: it holds no optimizers.
    """
    names = _parameter_names(task)
    with _explain_misfit(checkpoint.path):
        saved = checkpoint.plain_state("optimization")["optimizers"]
        for name in saved.keys() | optimizers.entries.keys():
            entry = optimizers.entries.get(name)
            if entry is None or name not in saved:
                theirs, ours = ", ".join(saved), ", ".join(optimizers.entries)
                raise ConfigError("resume", f"{checkpoint.path} has the optimizers {theirs}; here are {ours}")
            state, kind = saved[name], type(entry.optimizer).__name__
            if state["type"] != kind:
                message = f"{checkpoint.path} holds the state of {state['type']}, which is no state of {kind}"
                raise ConfigError("resume", message)
            groups = [[names[id(p)] for p in group["params"]] for group in entry.optimizer.param_groups]
            if _has_torch_format(state) and groups != [group["params"] for group in state["param_groups"]]:
                raise ConfigError(
                    "resume", f"{checkpoint.path} has other param groups of {kind} than this run"
                )


def restore(trainer: Trainer, saved: SavedCheckpoint, changed: Collection[str] = ()) -> None:
    """Load a checkpoint into a run. The param group fields in `changed` keep the values of the config.

    Raises:
        CheckpointError: the checkpoint does not fit the run.
    """
    restore_weights(trainer, saved)
    with _explain_misfit(saved.path):
        _restore_optimizers(trainer, saved, changed)
        trainer.plan.precision.load_state_dict(saved.read_state("precision"))
        if trainer.plan.hooks.has_state:
            trainer.plan.hooks.load_state_dict(saved.read_state("hooks", _shard_owner(trainer.model)))
        if isinstance(trainer.stream, PositionedStream):
            trainer.stream.load_state_dict(saved.read_state("stream"))
        _restore_ranks(trainer, saved.read_state("ranks"))


def restore_weights(trainer: Trainer, saved: SavedCheckpoint) -> None:
    """Load the weights of a checkpoint, also the averaged ones, and what the task holds besides its model.

    Raises:
        CheckpointError: the checkpoint does not fit the run.
    """
    parts = weight_parts(saved.path)
    with _explain_misfit(saved.path):
        for part, target in (("model", trainer.model), ("ema", trainer.plan.averaging)):
            if weights := target.state_dict():
                source = part if part in parts else "model"
                if source != part:
                    log.warning("%s holds no average, so it begins with the weights there", saved.path)
                read_into(saved.path, source, weights)
                target.load_state_dict(weights)
        restore_outside_model(trainer.task, saved)


def restore_outside_model(task: nn.Module, saved: SavedCheckpoint) -> None:
    """Load the parameters and buffers of the task itself.

    Raises:
        CheckpointError: they are those of another task.
    """
    with _explain_misfit(saved.path):
        owners = {f"task.{name}": value for name, value in _state_outside_model(task).items()}
        task.load_state_dict(saved.read_state("task", owners.get), strict=False)


def _shard_owner(model: nn.Module) -> Owner:
    """Return a function from a path of the saved state to the sharded weight whose name it ends with."""
    shards = {name: parameter for name, parameter in model.named_parameters() if is_sharded(parameter)}

    def owner(key: str) -> Tensor | None:
        while key and key not in shards:
            key = key.partition(".")[2]
        return shards.get(key)

    return owner


def _optimizer_owner(trainer: Trainer) -> Owner:
    """Return a function from a path of the saved optimizer state to the weight whose name it begins with."""
    names = _parameter_names(trainer.task)
    owners: dict[str, Tensor] = {}
    for name, entry in trainer.optimizers.entries.items():
        prefix = f"optimization.optimizers.{name}.state."
        owners |= {f"{prefix}{names[id(p)]}": p for p in entry.parameters}
    weights = trainer.optimizers.mode_parameters
    owners |= {f"optimization.trained_weights.{n}": value for n, value in enumerate(weights)}

    def owner(key: str) -> Tensor | None:
        while key and key not in owners:
            key = key.rpartition(".")[0]
        return owners.get(key)

    return owner


def _restore_optimizers(trainer: Trainer, checkpoint: SavedCheckpoint, changed: Collection[str]) -> None:
    names = _parameter_names(trainer.task)
    state = checkpoint.read_state("optimization", _optimizer_owner(trainer))
    for name, entry in trainer.optimizers.entries.items():
        parameters = [names[id(p)] for p in entry.parameters]
        saved = state["optimizers"][name]
        del saved["type"]
        state["optimizers"][name] = _by_position(saved, parameters, entry.optimizer.state_dict(), changed)
    trainer.optimizers.load_state_dict(state)


def _restore_ranks(trainer: Trainer, ranks: list[dict[str, Any]]) -> None:
    """Restore each rank's meter and random state. On another number of ranks, rank 0 receives the sums of all."""
    world, meters = trainer.plan.world, [rank["meter"] for rank in ranks]
    if len(ranks) != world.world_size:
        total = merge_meters(meters)
        empty = total | {"sums": torch.zeros_like(total["sums"]), "weight": 0}
        meters = [total, *[empty] * world.rank]
    trainer.meter.load_state_dict(meters[world.rank])
    seeding.set_host_state(ranks[world.rank % len(ranks)]["host"])


def _has_torch_format(state: Mapping[str, Any]) -> bool:
    return {"state", "param_groups"} <= state.keys()


def _parameter_names(task: nn.Module) -> dict[int, str]:
    """Return the names of a task's parameters by their `id`."""
    return {id(parameter): name for name, parameter in task.named_parameters()}


def _by_name(state: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Replace the positions of parameters in an optimizer's state by names, if it has torch's format."""
    if not _has_torch_format(state):
        return dict(state)
    named = {names[key] if isinstance(key, int) else key: value for key, value in state["state"].items()}
    groups = [group | {"params": [names[n] for n in group["params"]]} for group in state["param_groups"]]
    return {**state, "state": named, "param_groups": groups}


def _by_position(
    state: Mapping[str, Any], names: list[str], fresh: Mapping[str, Any], changed: Collection[str]
) -> dict[str, Any]:
    """Undo `_by_name` for an optimizer whose present state is `fresh`.

    The fields in `changed` and those that choose a kernel are taken from there.
    """
    if not _has_torch_format(state):
        return dict(state)
    saved: list[dict[str, Any]] = state["param_groups"]
    positions = {name: n for n, name in enumerate(names)}
    by_position = {positions.get(key, key): value for key, value in state["state"].items()}
    kept = {"params", *KERNEL_FIELDS, *changed}
    groups = [
        was | {field: now[field] for field in kept if field in now}
        for was, now in zip(saved, fresh["param_groups"], strict=True)
    ]
    return {**state, "state": by_position, "param_groups": groups}


def _state_outside_model(task: nn.Module) -> dict[str, Any]:
    """Return the parameters and buffers of the task itself."""
    return {name: value for name, value in task.state_dict().items() if not name.startswith("model.")}


def _on_host(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.cpu() if isinstance(value, Tensor) else value for key, value in state.items()}
