"""The names that W&B accepts: those of the config and of W&B's variables are checked, those of the run are cut."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, log

MAX_NAME = 128  # characters that W&B accepts for a project, run, group or job type
MAX_TAG = 64

VARIABLES = {"project": "WANDB_PROJECT", "group": "WANDB_RUN_GROUP", "job_type": "WANDB_JOB_TYPE",
             "name": "WANDB_NAME", "tags": "WANDB_TAGS", "notes": "WANDB_NOTES"}  # fmt: skip
"""Key -> W&B's own variable for it, which counts where the key is left at null."""


def with_variables(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with W&B's variables for those that are None. Log, in one line, which variables do not count.

    Args:
        settings: the keys of the tracker that have a variable.
        config: of the run, whose own `tags` and `notes` count before a variable.
    """
    values, overruled = dict(settings), list[str]()
    for key, variable in VARIABLES.items():
        of_run = key if key in ("tags", "notes") and config.get(key) else ""
        if not (text := os.environ.get(variable)):
            continue
        if settings[key] is None and not of_run:
            values[key] = text.split(",") if key == "tags" else text
        else:
            overruled.append(f"{variable} ({of_run if settings[key] is None else f'tracker.{key}'} is set)")
    if overruled:
        log.info("W&B: these variables do not count: %s", ", ".join(overruled))
    return values


def files_folder(folder: Path) -> Path:
    """Return where W&B keeps the files of a run: in WANDB_DIR, or else in its folder."""
    return Path(os.environ.get("WANDB_DIR") or folder).resolve()


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
