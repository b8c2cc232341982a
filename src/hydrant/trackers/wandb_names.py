"""The names that W&B accepts: those of the config and of W&B's variables are checked, those of the run are cut."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, log
from hydrant.trackers.base import RunIdentity

MAX_NAME = 128  # characters that W&B accepts for a project, run, group or job type
MAX_TAG = 64

VARIABLES = {"project": "WANDB_PROJECT", "group": "WANDB_RUN_GROUP", "job_type": "WANDB_JOB_TYPE",
             "name": "WANDB_NAME", "tags": "WANDB_TAGS", "notes": "WANDB_NOTES"}  # fmt: skip
"""Key -> W&B's own variable for it, which counts where the key is left at null."""


def names_of(settings: Mapping[str, Any], identity: RunIdentity) -> dict[str, Any]:
    """Return what a W&B run is called: by its settings, else by W&B's variables, else by the run's identity, cut.

    Log, in one line, which variables do not count. The run's own keys `tags` and `notes` count before a variable.

    Args:
        settings: the keys of the tracker that have a variable.

    Raises:
        ConfigError: W&B rejects a name that is no default.
    """
    defaults = {"project": "hydrant"} | vars(identity)
    names, overruled = dict[str, Any](), list[str]()
    for key, variable in VARIABLES.items():
        value: Any = settings[key]
        text = os.environ.get(variable)
        is_of_run = value is None and key in ("tags", "notes") and identity.config.get(key)
        if text and (value is not None or is_of_run):
            overruled.append(f"{variable} ({key if is_of_run else f'tracker.{key}'} is set)")
        elif text:
            value = text.split(",") if key == "tags" else text
        fit = _cut if value is None else partial(_checked, f"tracker.{key}")
        value = defaults[key] if value is None else value
        if key == "tags":
            names[key] = [fit(tag, MAX_TAG) for tag in value if tag]
        else:
            names[key] = value if key == "notes" else fit(value, MAX_NAME)
    if overruled:
        log.info("W&B: these variables do not count: %s", ", ".join(overruled))
    if re.search(r"[/\\#?%:]", names["project"]):
        message = rf"{names['project']!r} has a character that W&B does not accept; leave out / \ # ? % :"
        raise ConfigError("tracker.project", message)
    return names


def files_folder(folder: Path) -> Path:
    """Return where W&B keeps the files of a run: in its folder, or in WANDB_DIR.

    `wandb agent` sets WANDB_DIR to W&B's default, the working folder, which nobody has chosen.
    """
    chosen = Path(os.environ.get("WANDB_DIR") or ".").resolve()
    return folder.resolve() if chosen == Path.cwd() else chosen


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
