"""Where a run starts: at the beginning, at a checkpoint, or not at all because it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch import nn
from yaml import YAMLError

from hydrant.checkpoint import Weights, find, find_weights, misfit, newest, newest_whole
from hydrant.config.plain import differences
from hydrant.errors import ConfigError, shown
from hydrant.logs import log
from hydrant.redaction import redacted
from hydrant.trackers.record import read_summary


@dataclass(frozen=True)
class Start:
    """Where a run starts. `checkpoint` holds everything, `weights` only a model.

    A checkpoint that `is_foreign` lies in another run's folder, to be taken over from there. `changed` is what of the
    config differs from the checkpoint's, where that is allowed: key, value there, value here.
    """

    checkpoint: Path | None = None
    weights: Weights | None = None
    is_foreign: bool = False
    is_finished: bool = False
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])

    def prepare(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        """Give a model on the host the weights to start from; with a checkpoint, only see that they are its own.

        Raises:
            ConfigError: they are another model's.
        """
        if self.weights is not None:
            self.weights.load(model, "init_from", strict=config["init_strict"])
            log.info("weights from %s", self.weights.source)
        difference = "" if self.checkpoint is None else misfit(self.checkpoint, model)
        if difference:
            told = f"the weights in {self.checkpoint} are another model's: {difference}; choose that model"
            raise ConfigError("resume", told)


def starting_point(config: Mapping[str, Any], folder: Path) -> Start:
    """Decide by `resume`, `init_from` and what the run folder holds.

    Raises:
        ConfigError: the folder or the checkpoint belongs to another config, or there is none to continue.
        CheckpointError: there are checkpoints, but none is whole.
    """
    resume, init_from = config["resume"], config["init_from"]
    own = newest(folder / "checkpoints")
    is_finished = read_summary(folder).get("status") == "finished"  # with save_every=null, no checkpoint
    if resume is None and (own is not None or is_finished):
        raise ConfigError(
            "resume", f"{folder} holds a run; resume=auto continues it, name=<folder> starts another"
        )
    changed: Mapping[str, tuple[Any, Any]] = {}
    if own is not None or (folder / "config.yaml").exists():
        changed = _changed(config, folder)
    if own is not None and resume not in ("auto", None):
        _refuse_another(resume, own, saved_config(folder, "resume").get("resume"))
    if is_finished and not changed:
        return Start(own, is_finished=True)
    if is_finished and own is None:
        told = f"{folder} holds a finished run of another config ({told_of(changed)}) and no checkpoint to go on from"
        raise ConfigError("resume", f"{told}; name=<folder> starts another")
    if own is not None:
        return Start(newest_whole(folder / "checkpoints"), changed=changed)
    if resume not in ("auto", None):
        found = find(resume, "resume")
        return Start(found, is_foreign=True, changed=_changed(config, found.parents[1]))
    return Start(weights=None if init_from is None else find_weights(init_from, "init_from"))


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


def _changed(config: Mapping[str, Any], folder: Path) -> dict[str, tuple[Any, Any]]:
    """The keys in which a config differs from that of a run folder, with both values.

    Raises:
        ConfigError: there are some, and `resume_strict` does not allow it.
    """
    changed = differences(saved_config(folder, "resume"), redacted(config))
    if changed and config["resume_strict"]:
        raise ConfigError(
            "resume",
            f"{folder} holds a run of another config: {told_of(changed)}. "
            "Give the same config, or another name=<folder>",
        )
    return changed


def told_of(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Changed keys of a config, with both values."""
    return ", ".join(f"{key} ({shown(old)} there, {shown(new)} here)" for key, (old, new) in changed.items())


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
