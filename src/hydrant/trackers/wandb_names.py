"""The names that W&B accepts: those of the config are checked, those that a run gives itself are cut."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from hydrant.errors import ConfigError

MAX_NAME = 128  # characters that W&B accepts for a project, run, group or job type
MAX_TAG = 64


def checked_project(project: str) -> str:
    if re.search(r"[/\\#?%:]", _checked("tracker.project", project, MAX_NAME)):
        message = rf"{project!r} has a character that W&B does not accept; leave out / \ # ? % :"
        raise ConfigError("tracker.project", message)
    return str(project)


def name_or_default(key: str, name: str | None, default: str) -> str:
    """Return a configured name, or the default cut to W&B's limit."""
    return _cut(default, MAX_NAME) if name is None else _checked(f"tracker.{key}", name, MAX_NAME)


def tags_or_default(tags: Sequence[str] | None, defaults: Sequence[str]) -> list[str]:
    if tags is None:
        return [_cut(tag, MAX_TAG) for tag in defaults if tag]
    return [_checked("tracker.tags", tag, MAX_TAG) for tag in tags]


def _checked(key: str, value: str, limit: int) -> str:
    """Return a configured name as text, because YAML reads some names as numbers."""
    text = str(value)
    if not 1 <= len(text) <= limit:
        raise ConfigError(key, f"{text!r} has {len(text)} characters, W&B accepts 1 to {limit}")
    return text


def _cut(text: str, limit: int) -> str:
    """Cut a name to the limit. A hash of the whole name keeps different names different."""
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return text if len(text) <= limit else f"{text[: limit - 9]}~{digest[:8]}"
