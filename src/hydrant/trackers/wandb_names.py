"""Which names W&B takes: refused where the user chose them, cut where they are made from overrides. Ids and modes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from hydrant.errors import ConfigError, unknown_name
from hydrant.trackers.record import replace_file

MODES = ("auto", "online", "offline", "disabled")
ID_FILE = Path("wandb", "hydrant-run-id")

MAX_NAME = 128  # characters of a project, run, group or job type that W&B takes
MAX_TAG = 64


def project_name(project: str) -> str:
    """A project as W&B takes it, or ConfigError."""
    if re.search(r"[/\\#?%:]", _checked("tracker.project", project, MAX_NAME)):
        raise ConfigError("tracker.project", rf"{project!r}: W&B takes none of the characters / \ # ? % :")
    return str(project)


def shown_name(key: str, given: str | None, own: str) -> str:
    """What the user gave, or ConfigError; else the run's own, cut to fit."""
    return _cut(own, MAX_NAME) if given is None else _checked(f"tracker.{key}", given, MAX_NAME)


def tag_names(given: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    """What the user gave, or ConfigError; else the run's own, cut to fit."""
    if given is None:
        return [_cut(tag, MAX_TAG) for tag in own if tag]
    return [_checked("tracker.tags", tag, MAX_TAG) for tag in given]


def _checked(key: str, given: str, limit: int) -> str:
    """What the user wrote, as text: YAML reads some names as numbers."""
    text = str(given)
    if not 1 <= len(text) <= limit:
        raise ConfigError(key, f"{text!r} has {len(text)} characters, W&B takes 1 to {limit}")
    return text


def _cut(text: str, limit: int) -> str:
    """A name made from overrides, cut to fit; a hash of the whole keeps different ones different."""
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return text if len(text) <= limit else f"{text[: limit - 9]}~{digest[:8]}"


def run_id(folder: Path) -> str:
    """The id of the W&B run of a run folder, kept there from before it is started."""
    file = folder / ID_FILE
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        given = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None  # by an agent
        replace_file(file, given or secrets.token_hex(6))
    return file.read_text(encoding="utf-8")


def resolve_mode(mode: str) -> str:
    """What `auto` is here, or ConfigError."""
    if mode not in MODES:
        raise unknown_name("tracker.mode", "mode", str(mode), MODES)
    if mode != "auto":
        return mode
    wanted = os.environ.get("WANDB_MODE") or "online"
    if wanted not in MODES[1:]:
        told = f"auto follows WANDB_MODE={wanted!r}; it knows {', '.join(MODES[1:])}"
        raise ConfigError("tracker.mode", told)
    return wanted
