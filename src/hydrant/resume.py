"""Where a run starts: at the beginning, at a checkpoint, or not at all because it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch import nn
from yaml import YAMLError

from hydrant.checkpoint import Checkpoints, find, misfit
from hydrant.config.plain import differences
from hydrant.errors import CheckpointError, ConfigError, shown
from hydrant.redaction import redacted
from hydrant.trackers.record import read_summary


@dataclass(frozen=True)
class Start:
    """Where a run starts. `checkpoint` holds everything, `weights` only a model.

    A checkpoint that `is_foreign` lies in another run's folder, to be taken over from there.
    """

    checkpoint: Path | None = None
    weights: Path | None = None
    is_foreign: bool = False
    is_finished: bool = False

    def check_fits(self, model: nn.Module) -> None:
        """Raises ConfigError if the weights to start from are another model's."""
        path, key = (self.weights, "init_from") if self.checkpoint is None else (self.checkpoint, "resume")
        difference = "" if path is None else misfit(path, model)
        if difference:
            raise ConfigError(
                key, f"the weights in {path} are another model's: {difference}; choose that model"
            )


def starting_point(config: Mapping[str, Any], folder: Path) -> Start:
    """Decide by `resume`, `init_from` and what the run folder holds.

    Raises:
        ConfigError: the folder or the checkpoint belongs to another config, or there is none to continue.
    """
    resume, init_from = config["resume"], config["init_from"]
    own = Checkpoints(folder / "checkpoints", keep_last=1).newest()
    is_finished = read_summary(folder).get("status") == "finished"  # with save_every=null, no checkpoint
    if resume is None and (own is not None or is_finished):
        raise ConfigError(
            "resume", f"{folder} holds a run; resume=auto continues it, name=<folder> starts another"
        )
    if own is not None or (folder / "config.yaml").exists():
        _refuse_other(config, folder)
    if own is not None and resume not in ("auto", None):
        _refuse_another(resume, own, saved_config(folder, "resume").get("resume"))
    if is_finished or own is not None:
        return Start(own, is_finished=is_finished)
    if resume not in ("auto", None):
        return Start(_continued(config, resume), is_foreign=True)
    return Start(weights=None if init_from is None else _found(init_from, "init_from"))


def _refuse_another(resume: str, newest: Path, before: str | None) -> None:
    """A run that has begun goes on from its newest checkpoint, and from no other."""
    given, own = Path(resume).resolve(), newest.resolve()
    if given in (own, own.parents[1]) or (before is not None and given == Path(before).resolve()):
        return
    raise ConfigError(
        "resume",
        f"this run goes on from its own {newest.name}, not from {resume}; leave resume out, or give "
        "name=<folder> too and a new run goes on from there",
    )


def _continued(config: Mapping[str, Any], resume: str) -> Path:
    checkpoint = _found(resume, "resume")
    _refuse_other(config, checkpoint.parents[1])
    return checkpoint


def _found(path: str, key: str) -> Path:
    try:
        return find(path)
    except CheckpointError as error:
        raise ConfigError(key, str(error)) from error


def _refuse_other(config: Mapping[str, Any], folder: Path) -> None:
    changed = differences(saved_config(folder, "resume"), redacted(config))
    if changed:
        pairs = [f"{key} ({shown(old)} there, {shown(new)} here)" for key, (old, new) in changed.items()]
        raise ConfigError(
            "resume",
            f"{folder} holds a run of another config: {', '.join(pairs)}. "
            "Give the same config, or another name=<folder>",
        )


def saved_config(folder: Path, key: str) -> dict[str, Any]:
    """The resolved config of a run folder, which `key` named.

    Raises:
        ConfigError: there is none that can be read.
    """
    file = folder / "config.yaml"
    try:
        saved = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise ConfigError(
            key, f"{file} cannot be read ({reason}); a run's folder holds its config"
        ) from error
    if not isinstance(saved, dict):
        raise ConfigError(key, f"{file} is no config of a run; a run's folder holds its config")
    return {str(key): value for key, value in saved.items()}
