"""What of a run is saved in a checkpoint, and how it is put back, on as many ranks or on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.checkpoint import Checkpoint, plain_state, read_into, read_state
from hydrant.errors import CheckpointError, ConfigError, HydrantError, typed_line
from hydrant.metrics import merged
from hydrant.optimization import Optimization
from hydrant.parts import Run


@contextmanager
def content_of(run: Run) -> Generator[Checkpoint]:
    """All that no function of `num_updates` gives back; to be copied while the context lasts."""
    optimization = run.optimization.state_dict()
    names = _names(run.task)
    for name, share in run.optimization.shares.items():
        own = [names[id(p)] for p in share.parameters]
        kind = {"type": type(share.optimizer).__name__}
        optimization["optimizers"][name] = kind | _named(optimization["optimizers"][name], own)
    training = {
        "optimization": optimization,
        "precision": run.precision.state_dict(),
        "state": dataclasses.asdict(run.state),
        "task": _beside_model(run.task),
        "ranks": run.world.gather({"meter": _on_host(run.meter.state_dict()), "host": seeding.host_state()}),
    }
    with run.optimization.showing_result():
        yield Checkpoint(run.model.state_dict(), training, run.averaging.state_dict())


def check_optimizers(path: Path, task: nn.Module, optimization: Optimization) -> None:
    """Raises ConfigError where a checkpoint's optimizers are of another kind, or divide the parameters differently."""
    saved = plain_state(path, "optimization")["optimizers"]
    names = _names(task)
    for name in saved.keys() | optimization.shares.keys():
        share = optimization.shares.get(name)
        if share is None or name not in saved:
            told = f"{path} has the optimizers {', '.join(saved)}; here are {', '.join(optimization.shares)}"
            raise ConfigError("resume", told)
        state, own = saved[name], type(share.optimizer).__name__
        if state["type"] != own:
            raise ConfigError(
                "resume", f"{path} holds the state of {state['type']}, which is no state of {own}"
            )
        groups = [[names[id(p)] for p in group["params"]] for group in share.optimizer.param_groups]
        if _is_torchs(state) and groups != [group["params"] for group in state["param_groups"]]:
            raise ConfigError("resume", f"{path} has other param groups of {own} than this run")


def restore(run: Run, path: Path, changed: Collection[str] = ()) -> None:
    """Put back what a checkpoint holds; the fields of param groups in `changed` stay as the config has them.

    Raises:
        CheckpointError: it is not of such a run.
    """
    try:
        for part, target in (("model", run.model), ("ema", run.averaging)):
            weights = target.state_dict()
            if weights:
                read_into(path, part, weights)
                target.load_state_dict(weights)
        _restore_optimization(run, path, changed)
        run.precision.load_state_dict(read_state(path, "precision"))
        beside = {f"task.{name}": value for name, value in _beside_model(run.task).items()}
        run.task.load_state_dict(read_state(path, "task", beside.get), strict=False)
        _restore_ranks(run, read_state(path, "ranks"))
    except HydrantError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit this run: {typed_line(error)}") from error


def _restore_optimization(run: Run, path: Path, changed: Collection[str]) -> None:
    names = _names(run.task)
    owners: dict[str, Tensor] = {}
    for name, share in run.optimization.shares.items():
        prefix = f"optimization.optimizers.{name}.state."
        owners |= {f"{prefix}{names[id(p)]}": p for p in share.parameters}
    trained = run.optimization.state_dict()["trained_weights"]
    owners |= {f"optimization.trained_weights.{n}": value for n, value in enumerate(trained)}

    def owner(key: str) -> Tensor | None:
        while key and key not in owners:
            key = key.rpartition(".")[0]
        return owners.get(key)

    state = read_state(path, "optimization", owner)
    for name, share in run.optimization.shares.items():
        own = [names[id(p)] for p in share.parameters]
        fresh = share.optimizer.state_dict()
        saved = state["optimizers"][name]
        del saved["type"]
        state["optimizers"][name] = _numbered(saved, own, fresh, changed)
    run.optimization.load_state_dict(state)


def _is_torchs(state: Mapping[str, Any]) -> bool:
    return {"state", "param_groups"} <= state.keys()


def _names(task: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in task.named_parameters()}


def _named(state: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """An optimizer's state by the names of its parameters instead of their positions, if it is in torch's form."""
    if not _is_torchs(state):
        return dict(state)
    own = {names[key] if isinstance(key, int) else key: value for key, value in state["state"].items()}
    groups = [group | {"params": [names[n] for n in group["params"]]} for group in state["param_groups"]]
    return {**state, "state": own, "param_groups": groups}


def _numbered(
    state: Mapping[str, Any], names: list[str], fresh: Mapping[str, Any], changed: Collection[str]
) -> dict[str, Any]:
    """`_named` undone, for an optimizer whose own state is `fresh`."""
    if not _is_torchs(state):
        return dict(state)
    saved: list[dict[str, Any]] = state["param_groups"]
    positions = {name: n for n, name in enumerate(names)}
    own = {positions.get(key, key): value for key, value in state["state"].items()}
    groups = [
        was | {"params": now["params"]} | {field: now[field] for field in changed if field in now}
        for was, now in zip(saved, fresh["param_groups"], strict=True)
    ]
    return {**state, "state": own, "param_groups": groups}


def _beside_model(task: nn.Module) -> dict[str, Any]:
    """What is the task's own."""
    return {name: value for name, value in task.state_dict().items() if not name.startswith("model.")}


def _on_host(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.cpu() if isinstance(value, Tensor) else value for key, value in state.items()}


def _restore_ranks(run: Run, ranks: list[dict[str, Any]]) -> None:
    """Each rank its own; on another number of ranks, the first goes on with the sums of all."""
    world, meters = run.world, [own["meter"] for own in ranks]
    if len(ranks) != world.world_size:
        of_all = merged(meters)
        of_none = of_all | {"sums": torch.zeros_like(of_all["sums"]), "weight": 0}
        meters = [of_all, *[of_none] * world.rank]
    run.meter.load_state_dict(meters[world.rank])
    seeding.set_host_state(ranks[world.rank % len(ranks)]["host"])
