"""What a run folder holds from an earlier start, and whether a config may go on from it. Brings in no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from hydrant.config.plain import differences
from hydrant.errors import ConfigError, shown
from hydrant.redaction import redacted
from hydrant.trackers.record import read_summary


@dataclass(frozen=True)
class Earlier:
    """Whether there is nothing left to do; which keys of the config differ, where that is allowed."""

    is_finished: bool
    changed: Mapping[str, tuple[Any, Any]]


def earlier_start(config: Mapping[str, Any], folder: Path) -> Earlier:
    """What a config finds in its run folder.

    Raises:
        ConfigError: what lies there belongs to another config, or `resume` is not to continue it.
        RecordError: the summary there is damaged.
    """
    has_checkpoint = any(folder.glob("checkpoints/update_*"))
    is_finished = read_summary(folder).get("status") == "finished"  # with save_every=null, no checkpoint
    if config["resume"] is None and (has_checkpoint or is_finished):
        told = f"{folder} holds a run; resume=auto continues it, name=<folder> starts another"
        raise ConfigError("resume", told)
    has_config = has_checkpoint or (folder / "config.yaml").exists()
    changed = changed_keys(config, folder) if has_config else {}
    if is_finished and changed and not has_checkpoint:
        told = f"{folder} holds a finished run of another config ({told_of(changed)}) and no checkpoint to go on from"
        raise ConfigError("resume", f"{told}; name=<folder> starts another")
    return Earlier(is_finished and not changed, changed)


def changed_keys(config: Mapping[str, Any], folder: Path) -> dict[str, tuple[Any, Any]]:
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
