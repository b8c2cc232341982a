"""Save and restore the state of a run, on the same or another number of ranks."""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import map_tensors, split_batch, tensors_of, whole_batch
from hydrant.clock import Clock, batch_size_steps
from hydrant.data import PositionedSource, PositionedStream, Source
from hydrant.data.splits import DataIdentity
from hydrant.errors import CheckpointError, ConfigError, HydrantError, first_few, log, typed_line
from hydrant.optimizers.kernels import KERNEL_FIELDS, is_sharded
from hydrant.records import Best, check_type
from hydrant.training.checkpoint import storage
from hydrant.training.checkpoint.folder import TRAINING
from hydrant.training.metrics import merge_meters
from hydrant.training.trainer import Trainer, TrainState
from hydrant.training.update import Optimizers


@contextmanager
def checkpoint_content(trainer: Trainer) -> Generator[storage.Checkpoint]:
    """Yield everything that is not a function of `num_updates`. Copy it inside the block."""
    optimizers = trainer.optimizers.state_dict()
    names = _parameter_names(trainer.task)
    for name, entry in trainer.optimizers.entries.items():
        named = _by_name(optimizers["optimizers"][name], [names[id(p)] for p in entry.parameters])
        built = trainer.optimizers.built[name]
        optimizers["optimizers"][name] = {"type": type(entry.optimizer).__name__, "built": built, **named}
    stream, num_updates = trainer.stream, trainer.state.num_updates
    of_rank = {
        "carried": map_tensors(Tensor.cpu, trainer.carried),
        "losses": list(trainer.losses),
        "meters": {n: map_tensors(Tensor.cpu, meter.state_dict()) for n, meter in trainer.meters.items()},
        "host": seeding.host_state(),
        "stream": stream.state_dict(num_updates) if isinstance(stream, PositionedStream) else {},
    }
    training = {
        "optimization": optimizers,
        "precision": trainer.plan.precision.state_dict(),
        "state": asdict(trainer.state),
        "judged_by": trainer.plan.early_stopping.judges_by,
        "task": _state_outside_model(trainer.task),
        "hooks": trainer.plan.hooks.state_dict(),
        **vars(trainer.plan.identity),
        "ranks": trainer.plan.world.all_gather(of_rank),
    }
    with trainer.optimizers.eval_weights():
        averages = trainer.plan.averaging.state_dict()
        yield storage.Checkpoint(trainer.model.state_dict(), training, averages, _optimizer_owner(trainer))


def saved_state(saved: storage.SavedCheckpoint) -> TrainState:
    """Return the TrainState in a checkpoint.

    Raises:
        CheckpointError: it has other fields, or values that no run has.
    """
    with _explain_misfit(saved.path / TRAINING):
        plain = saved.plain_state("state")
        check_type(plain, TrainState)
        state, best = TrainState(**plain), check_type(plain.get("best"), Best | None)
    latest = max(state.validated_since, 0 if best is None else best.num_updates)
    is_possible = latest <= state.num_updates == saved.manifest.num_updates
    if not is_possible or state.num_skipped_in_a_row > state.num_skipped:
        raise CheckpointError(f"{saved.path / TRAINING} holds an impossible state of a run")
    return state


def saved_identity(saved: storage.SavedCheckpoint) -> DataIdentity:
    """Return what the data of the run of a checkpoint were.

    Raises:
        CheckpointError: it cannot be read.
    """
    return DataIdentity(*(saved.plain_state(field.name, field.type) for field in fields(DataIdentity)))


@contextmanager
def _explain_misfit(path: Path) -> Generator[None]:
    """Raise a CheckpointError, whatever error the content of a checkpoint causes."""
    try:
        yield
    except HydrantError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit this run: {typed_line(error)}") from error


def check_optimizers(checkpoint: storage.SavedCheckpoint, task: nn.Module, optimizers: Optimizers) -> None:
    """Check that a checkpoint's optimizers have the same types and param groups as this run's.

    Raises:
        ConfigError: they differ.
        CheckpointError: it holds no optimizers.
    """
    names = _parameter_names(task)
    with _explain_misfit(checkpoint.path):
        saved = checkpoint.plain_state("optimization")["optimizers"]
        theirs = ", ".join(f"{name}: {state['type']}" for name, state in sorted(saved.items()))
        kinds = {name: type(entry.optimizer).__name__ for name, entry in optimizers.entries.items()}
        ours = ", ".join(f"{name}: {kind}" for name, kind in sorted(kinds.items()))
        if theirs != ours:
            raise ConfigError("resume", f"{checkpoint.path} has the optimizers {theirs}; here are {ours}")
        for name, entry in optimizers.entries.items():
            state = saved[name]
            if not _has_torch_format(state):
                continue
            here = _in_order([[names[id(p)] for p in g["params"]] for g in entry.optimizer.param_groups])
            there = _in_order([group["params"] for group in state["param_groups"]])
            pairs = zip_longest(there, here, fillvalue="no weight")
            if pair := next((pair for pair in pairs if pair[0] != pair[1]), None):
                message = f"{kinds[name]} has {pair[0]} there where this run has {pair[1]}"
                reason = "the code makes layers in another order, or the param groups are others"
                remedy = "change that back, or begin with the weights alone: init_from=<run> and a new name"
                raise ConfigError("resume", f"{checkpoint.path}: {message}; {reason}", remedy=remedy)


def _in_order(groups: Sequence[Sequence[str]]) -> list[str]:
    return [f"{name} in group {n}" for n, group in enumerate(groups) for name in group]


def restore(trainer: Trainer, saved: storage.SavedCheckpoint) -> None:
    """Load a checkpoint into a run. Fields of param groups that the config has changed keep their new values.

    Raises:
        CheckpointError: the checkpoint does not fit the run.
    """
    restore_weights(trainer, saved)
    with _explain_misfit(saved.path):
        _restore_optimizers(trainer, saved)
        trainer.plan.precision.load_state_dict(saved.read_state("precision"))
        if trainer.plan.hooks.listens("state_dict"):
            trainer.plan.hooks.load_state_dict(saved.read_state("hooks", _shard_owner(trainer.model)))
        _restore_ranks(trainer, saved)


def restore_weights(trainer: Trainer, saved: storage.SavedCheckpoint) -> None:
    """Load the weights of a checkpoint, also the averaged ones, and what the task holds besides its model.

    Raises:
        CheckpointError: the checkpoint does not fit the run.
    """
    parts = storage.weight_parts(saved.path)
    with _explain_misfit(saved.path):
        for part, target in (("model", trainer.model), ("ema", trainer.plan.averaging)):
            if weights := target.state_dict():
                source = part if part in parts else "model"
                if source != part:
                    log.warning("%s holds no average, so it begins with the weights there", saved.path)
                storage.read(storage.files_of(saved.path, source), weights)
                target.load_state_dict(weights)
        restore_outside_model(trainer.task, saved)


def restore_outside_model(task: nn.Module, saved: storage.SavedCheckpoint) -> None:
    """Load the parameters and buffers of the task itself.

    Raises:
        CheckpointError: they are those of another task.
    """
    with _explain_misfit(saved.path):
        owners = {f"task.{name}": value for name, value in _state_outside_model(task).items()}
        task.load_state_dict(saved.read_state("task", owners.get), strict=False)


def take_trained_outside_model(task: nn.Module, saved: storage.SavedCheckpoint) -> None:
    """Load what the task trains besides the model, such as a loss with weights, where it fits; log what begins anew."""
    trained = {name.partition(".")[0] for name, p in task.named_parameters() if p.requires_grad}
    state = _state_outside_model(task).items()
    shapes = {n: v.shape for n, v in state if n.partition(".")[0] in trained and isinstance(v, Tensor)}
    if not shapes:
        return
    with _explain_misfit(saved.path):
        learned = saved.read_state("task")
        fitting = {
            name: learned[name]
            for name, shape in shapes.items()
            if getattr(learned.get(name), "shape", None) == shape
        }
        task.load_state_dict(fitting, strict=False)
    anew = first_few([name for name in shapes if name not in fitting])
    shown = first_few([*fitting]) or "none"
    log.info("weights of the task itself from %s: %s%s", saved.path, shown, anew and f"; begun anew: {anew}")


def _shard_owner(model: nn.Module) -> storage.Owner:
    """Return a function from a path of the saved state to the sharded weight whose name it ends with."""
    shards = {name: parameter for name, parameter in model.named_parameters() if is_sharded(parameter)}

    def owner(key: str) -> Tensor | None:
        while key and key not in shards:
            key = key.partition(".")[2]
        return shards.get(key)

    return owner


def _optimizer_owner(trainer: Trainer) -> storage.Owner:
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


def _restore_optimizers(trainer: Trainer, checkpoint: storage.SavedCheckpoint) -> None:
    names = _parameter_names(trainer.task)
    state = checkpoint.read_state("optimization", _optimizer_owner(trainer))
    for name, entry in trainer.optimizers.entries.items():
        parameters = [names[id(p)] for p in entry.parameters]
        saved = state["optimizers"][name]
        del saved["type"]
        others = [
            {k.partition(".")[0] for k in now.keys() | then.keys() if repr(now.get(k)) != repr(then.get(k))}
            for now, then in zip(trainer.optimizers.built[name], saved.pop("built"), strict=True)
        ]
        state["optimizers"][name] = _by_position(saved, parameters, entry.optimizer.state_dict(), others)
    trainer.optimizers.load_state_dict(state)


def _restore_ranks(trainer: Trainer, saved: storage.SavedCheckpoint) -> None:
    """Restore each rank's meter, random state and position in a stream, and its part of what the task carries.

    On another number of ranks, rank 0 receives the sums of all meters.
    """
    world, ranks = trainer.plan.world, saved.read_state("ranks")
    of_rank = ranks[world.rank % len(ranks)]
    trainer.losses |= dict.fromkeys(of_rank["losses"])
    for name, meter in trainer.meters.items():
        meters = [rank["meters"].get(name) for rank in ranks]
        if None in meters:  # another order of updates
            continue
        if len(ranks) != world.world_size:
            total = merge_meters(meters)
            empty = total | {"sums": torch.zeros_like(total["sums"]), "weight": 0}
            meters = [total, *[empty] * world.rank]
        meter.load_state_dict(meters[world.rank])
    spec, whole = trainer.plan.spec, whole_batch([rank["carried"] for rank in ranks])
    num_samples, size = spec.batch_sizes.value(trainer.state.num_updates), spec.micro_batch_size
    if {len(tensor) for tensor in tensors_of(whole)} == {num_samples}:  # else the next update begins anew
        parts = split_batch(whole, size, num_samples // size)[spec.rank :: spec.world_size]
        trainer.carried = map_tensors(lambda tensor: tensor.to(spec.device, copy=True), list(parts))
    seeding.set_host_state(of_rank["host"])
    if isinstance(trainer.stream, PositionedStream):
        trainer.stream.load_state_dict(of_rank["stream"])


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
    state: Mapping[str, Any], names: list[str], fresh: Mapping[str, Any], others: Sequence[Collection[str]]
) -> dict[str, Any]:
    """Undo `_by_name` for an optimizer whose present state is `fresh`.

    The fields that choose a kernel, and the `others` of each group, are taken from there.
    """
    if not _has_torch_format(state):
        return dict(state)
    saved: list[dict[str, Any]] = state["param_groups"]
    positions = {name: n for n, name in enumerate(names)}
    by_position = {positions.get(key, key): value for key, value in state["state"].items()}
    groups = [
        before | {field: now[field] for field in {"params", *KERNEL_FIELDS, *taken} if field in now}
        for before, now, taken in zip(saved, fresh["param_groups"], others, strict=True)
    ]
    return {**state, "state": by_position, "param_groups": groups}


def _state_outside_model(task: nn.Module) -> dict[str, Any]:
    """Return the parameters and buffers of the task itself."""
    return {name: value for name, value in task.state_dict().items() if not name.startswith("model.")}


def check_stream(source: Source, *, is_continued: bool) -> None:
    """Check that the position of a stream of training samples can be saved, and restored if the run continues.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(source, PositionedSource):
        return
    if is_continued and not source.has_state:
        message = f"{source.key} has no state_dict and load_state_dict, so its position in the checkpoint is unknown"
        raise ConfigError("resume", message, remedy="add both methods, or start a new run in another folder")
    try:
        storage.split(source.first_state, {})
    except CheckpointError as error:
        message = f"state_dict() returns what checkpoints cannot hold: {error}"
        remedy = "give numbers, strings, lists, dicts or tensors"
        raise ConfigError(source.key, message, remedy=remedy) from error


def check_ranks(source: Source, saved: storage.SavedCheckpoint, num_ranks: int) -> None:
    """Check that a stream whose ranks read items of their own continues on as many ranks: each has its position.

    Raises:
        ConfigError: there were others.
    """
    num_saved = len(saved.plain_state("ranks"))
    if isinstance(source, PositionedSource) and source.is_divided and num_saved != num_ranks:
        message = f"{num_ranks} ranks cannot go on with a stream that {num_saved} ranks have read"
        raise ConfigError("data.divided", message, remedy=f"start {num_saved}")


def check_batch_sizes(saved: storage.SavedCheckpoint, earlier: Any, clock: Clock) -> None:
    """Check that the completed updates keep the sizes that they had by the `earlier` `global_batch_size`.

    Epochs, samples and the position in the data are counted with the sizes of all updates.

    Raises:
        ConfigError: another size is given for one of them.
    """
    num_updates = saved.manifest.num_updates
    num_samples = saved.plain_state("samples")["train"]
    sizes, before = clock.batch_sizes, batch_size_steps(earlier, num_samples, clock.costs)
    made = [n for n in sorted({*sizes.starts, *before.starts}) if n < num_updates]
    if all(sizes.value(n) == before.value(n) for n in made):
        return
    later = [n for n in sizes.starts if n >= num_updates]
    needed = {n: before.value(n) for n in before.starts if n < num_updates}
    needed |= {n: sizes.value(n) for n in (num_updates, *later)}
    raise ConfigError(
        "global_batch_size",
        f"the {num_updates:,} updates of this run had other sizes, and epochs are counted by the sizes of all updates",
        remedy=f"keep them: 'global_batch_size={{{', '.join(f'{n}: {size}' for n, size in needed.items())}}}'",
    )
