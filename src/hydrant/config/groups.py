"""Find the conf folders and the options of the config groups."""

from __future__ import annotations

import os
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
