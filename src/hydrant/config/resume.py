"""Where a run starts: at the beginning, at a checkpoint, or not at all because it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hydrant.checkpoint import Checkpoints, find
from hydrant.config.plain import differences
from hydrant.errors import CheckpointError, ConfigError
from hydrant.trackers.record import read_summary


@dataclass(frozen=True)
class Start:
    """Where a run starts. `checkpoint` holds everything, `weights` only a model."""

    checkpoint: Path | None = None
    weights: Path | None = None
    is_finished: bool = False


def starting_point(config: Mapping[str, Any], folder: Path) -> Start:
    """Decide by `resume`, `init_from` and what the run folder holds.

    Raises:
        ConfigError: the folder or the checkpoint belongs to another config, or there is none to continue.
    """
    resume, init_from = config["resume"], config["init_from"]
    own = Checkpoints(folder / "checkpoints", keep_last=1).newest()
    if resume is None and own is not None:
        raise ConfigError("resume", f"{folder} holds a run; resume=auto continues it, or choose another name")
    if own is not None or (folder / "config.yaml").exists():
        _refuse_other(config, folder)
    if own is not None and read_summary(folder).get("status") == "finished":
        return Start(own, is_finished=True)
    if own is not None:
        return Start(own)
    if resume not in ("auto", None):
        return Start(checkpoint=_continued(config, resume))
    return Start(weights=None if init_from is None else _found(init_from, "init_from"))


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
    saved = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(saved, dict)
    changed = differences({str(k): v for k, v in saved.items()}, config)
    if changed:
        listing = ", ".join(f"{key} ({old!r} there, {new!r} here)" for key, (old, new) in changed.items())
        raise ConfigError(
            "resume",
            f"{folder} holds a run of another config: {listing}. Give the same config, or choose another name",
        )
