"""Find the conf folders and the options of the config groups."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hydrant.errors import ConfigError


def conf_dir() -> Path:
    """Return Hydrant's own conf folder: inside the installed package, or at the root of the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def user_conf_dir() -> Path | None:
    """Return the user's conf folder, `$HYDRANT_CONF` or `./conf`; None if there is none.

    Its options take precedence over Hydrant's.

    Raises:
        ConfigError: HYDRANT_CONF is not a folder.
    """
    variable = os.environ.get("HYDRANT_CONF")
    folder = Path(variable or "conf").resolve()
    if variable and not folder.is_dir():
        message = f"{variable} is not a folder; set it to your conf folder, or unset it"
        raise ConfigError("HYDRANT_CONF", message)
    return folder if folder.is_dir() and folder != conf_dir().resolve() else None


def group_options() -> dict[str, list[str]]:
    """Return every config group with its options, from the user's and Hydrant's conf folders."""
    options: dict[str, set[str]] = {}
    for folder in filter(None, (conf_dir(), user_conf_dir())):
        for path in folder.rglob("*.yaml"):
            group = path.parent.relative_to(folder).as_posix()
            is_base = path.stem.startswith("_")  # `_frame.yaml` is only in the defaults of other options
            if not is_base and group not in (".", "wandb_sweep"):
                options.setdefault(group, set()).add(path.stem)
    return {group: sorted(options[group]) for group in sorted(options)}


def completions(word: str) -> list[str]:
    """Return the completions of a command line word that are known from file names; empty if only Hydra knows them.

    >>> completions("precision=f"), completions("see")
    (['precision=fp16', 'precision=fp32', 'precision=fp8'], ['seed='])
    """
    group, equals, prefix = word.partition("=")
    options = group_options()
    if equals:
        return [f"{group}={option}" for option in options.get(group, []) if option.startswith(prefix)]
    entry = (conf_dir() / "train.yaml").read_text(encoding="utf-8")
    keys = re.findall(r"^(?!hydra|defaults)(\w+):", entry, re.MULTILINE)
    nodes = re.findall(r"^  - (\w+): (?!null)", entry, re.MULTILINE)  # groups whose options have keys
    candidates = [f"{name}." for name in nodes] + [f"{name}=" for name in {*options, *keys}]
    return sorted(candidate for candidate in candidates if candidate.startswith(word))
