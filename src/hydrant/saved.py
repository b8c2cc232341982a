"""A run read back from its folder: its config and the model of one of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from hydrant import checkpoint
from hydrant.build import Prepared, prepare
from hydrant.config import check, compose
from hydrant.config.resume import saved_config
from hydrant.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class SavedRun:
    """A run as it was at a checkpoint: on the host, in evaluation mode."""

    folder: Path
    checkpoint: Path
    num_updates: int
    prepared: Prepared


def open_run(path: str, overrides: Sequence[str]) -> SavedRun:
    """The run at a run folder (its newest checkpoint) or at a checkpoint folder, with keys overridden.

    Raises:
        ConfigError: there is no such run, or the overrides are wrong.
    """
    try:
        found = checkpoint.find(path)
    except CheckpointError as error:
        raise ConfigError("", str(error)) from error
    folder = found.parents[1]
    saved = OmegaConf.create(saved_config(folder, ""))
    prepared = prepare(_overridden(saved, overrides))
    difference = checkpoint.misfit(found, prepared.task.model)
    if difference:
        raise ConfigError(
            "model", f"the weights in {found} are another model's: {difference}; choose that model"
        )
    weights = checkpoint.load_part(found, "model", prepared.world.device)
    prepared.task.model.load_state_dict(weights)
    own = checkpoint.load_part(found, "training", prepared.world.device)["task"]
    prepared.task.load_state_dict(own, strict=False)  # what is the task's own, beside its model
    prepared.task.eval()
    return SavedRun(folder, found, int(found.name.removeprefix("update_")), prepared)


def _overridden(saved: DictConfig, overrides: Sequence[str]) -> Mapping[str, Any]:
    """The saved config with these keys and groups as a fresh config of the same overrides has them."""
    fresh = compose(overrides)
    with open_dict(saved):
        for override in overrides:
            key = override.lstrip("+~").partition("=")[0].replace("/", ".").partition("@")[0]
            OmegaConf.update(saved, key, OmegaConf.select(fresh, key), merge=False, force_add=True)
    return check(saved)
