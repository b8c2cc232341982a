"""Which names W&B takes: refused where the user chose them, cut where they are made from overrides."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from hydrant.errors import ConfigError

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
