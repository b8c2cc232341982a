"""Where the options of the config groups lie."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hydrant.errors import ConfigError


def conf_dir() -> Path:
    """Hydrant's own conf folder: inside the installed package, or at the root of the checkout."""
    package = Path(__file__).parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def user_conf_dir() -> Path | None:
    """The user's conf folder, `./conf` or HYDRANT_CONF, whose options come before ours; `None` if there is none.

    Raises:
        ConfigError: HYDRANT_CONF names none.
    """
    named = os.environ.get("HYDRANT_CONF")
    folder = Path(named or "conf").resolve()
    if named and not folder.is_dir():
        raise ConfigError("HYDRANT_CONF", f"{named} is no folder; name your conf folder, or unset it")
    return folder if folder.is_dir() and folder != conf_dir().resolve() else None


def group_options() -> dict[str, list[str]]:
    """Every config group with its options, of the user's folder and of ours."""
    found: dict[str, set[str]] = {}
    for folder in filter(None, (conf_dir(), user_conf_dir())):
        for path in folder.rglob("*.yaml"):
            group = path.parent.relative_to(folder).as_posix()
            if group not in (".", "wandb_sweep") and not path.stem.startswith(
                "_"
            ):  # such a file is part of others
                found.setdefault(group, set()).add(path.stem)
    return {group: sorted(found[group]) for group in sorted(found)}


def completions(word: str) -> list[str]:
    """What a word of the command line can become, as far as file names tell; empty where Hydra must be asked.

    >>> completions("precision=f"), completions("see")
    (['precision=fp16', 'precision=fp32', 'precision=fp8'], ['seed='])
    """
    group, is_choice, prefix = word.partition("=")
    options = group_options()
    if is_choice:
        return [f"{group}={option}" for option in options.get(group, []) if option.startswith(prefix)]
    entry = (conf_dir() / "train.yaml").read_text(encoding="utf-8")
    keys = re.findall(r"^(?!hydra|defaults)(\w+):", entry, re.MULTILINE)
    nodes = re.findall(r"^  - (\w+): (?!null)", entry, re.MULTILINE)  # groups whose options have keys
    found = [f"{name}." for name in nodes] + [f"{name}=" for name in {*options, *keys}]
    return sorted(name for name in found if name.startswith(word))
