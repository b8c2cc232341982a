"""Options whose keys do not lie below the name of their group. The first line of their files places them.

Of a grid in conf/sweep, only the settings of Hydra reach the sweep.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from hydrant.config.groups import conf_dirs, content_of, option_path
from hydrant.config.schema import GROUPS, TrainConfig
from hydrant.errors import ConfigError
from hydrant.files.marked_text import read_marked

_PLACES = {"experiment": "_global_", "debug": "_global_", "sweep": "_global_", "hook": "hooks.<name>"}
"""Group -> what `# @package` says in the files of its options."""
_LINE = re.compile(r"^[ \t]*#[ \t]*@[ \t]*package\b.*$", re.MULTILINE)


def check_placed(config: Mapping[str, Any]) -> None:
    """Check that every option of these groups has placed its keys.

    Raises:
        ConfigError: Names the file and its first line.
    """
    for group in _PLACES.keys() & config.keys():
        raise misplaced(group, config[group])


def check_grid_file(name: str | None) -> None:
    """Check that a grid sets nothing but Hydra's settings, because its jobs are composed without it.

    Raises:
        ConfigError: Names the file and what it sets.
    """
    file = option_path("sweep", name or "")
    content = content_of(file)
    chosen = [key for item in content.get("defaults", []) if isinstance(item, dict) for key in item]
    keys = [key.removeprefix("override ").lstrip("/") for key in chosen] + [*content.keys() - {"defaults"}]
    if others := sorted(key for key in keys if key.partition("/")[0] != "hydra"):
        message = (
            f"{file} sets {others[0]}, which does not reach the jobs; write it below hydra.sweeper.params"
        )
        raise ConfigError("sweep", f"{message}, also if it has one value")


def misplaced(group: str, keys: Any) -> ConfigError:
    """Return the error for an option of one of these groups whose keys lie below the name of the group."""
    found = _texts(keys) if isinstance(keys, Mapping) else {}
    files = {file: _texts(content_of(file)) for file in _unplaced_files(group)}
    likely = [file for file in files if files[file].keys() <= found.keys()]
    if likely:  # several may have the same keys
        return unplaced(group, max(likely, key=lambda file: len(files[file].items() & found.items())))
    chosen = keys if isinstance(keys, str | list) else "<option>"
    return ConfigError(
        group, "is a config group", remedy=f"choose an option of it: {in_defaults(group, chosen)}"
    )


def in_defaults(group: str, options: Any) -> str:
    """Return how to choose options of a group, on the command line and in a config file.

    >>> in_defaults("hook", ["a", "b"])
    'hook=[a,b], or in the defaults list of a config file: override /hook: [a,b]'
    """
    text = f"[{','.join(map(str, options))}]" if isinstance(options, list) else str(options)
    return f"{group}={text}, or in the defaults list of a config file: override /{group}: {text}"


def listed(name: str) -> ConfigError | None:
    """Return the error for an option such as `experiment/mine` that gives a list to a key that holds a mapping."""
    group, _, option = name.rpartition("/")
    file = option_path(group, option)
    for key, value in content_of(file).items():
        hint = get_type_hints(TrainConfig).get(key)
        if isinstance(value, list) and (key in GROUPS or (get_origin(hint) or hint) is dict):
            chosen = {"hooks": in_defaults("hook", value)}.get(key, in_defaults(key, "<option>"))
            remedy = f"; choose options: {chosen}" if key in (*GROUPS, "hooks") else ""
            return ConfigError(key, f"needs a mapping of keys to values, not the list in {file}{remedy}")
    return None


def unplaced(group: str, file: Path) -> ConfigError:
    """Return the error for an option whose file lacks the line that places its keys."""
    line = f"# @package {_PLACES[group].replace('<name>', file.stem)}"
    text = read_marked(file, errors="replace")
    found = _LINE.search(text)
    instead = f", in place of line {text.count(chr(10), 0, found.start()) + 1}" if found else ""
    return ConfigError(group, f"{file} needs the first line '{line}'{instead}, which places its keys")


def unplaced_option(name: str) -> ConfigError | None:
    """Return the error for an option such as `experiment/mine` if its file needs that line and lacks it."""
    group = name.partition("/")[0]
    files = _unplaced_files(group) if group in _PLACES else []
    file = next((file for file in files if str(file).endswith(f"/{name}.yaml")), None)
    return file and unplaced(group, file)


def _unplaced_files(group: str) -> list[Path]:
    files = (file for folder in conf_dirs() for file in sorted((folder / group).rglob("*.yaml")))
    return [file for file in files if _lacks_line(file)]


def _lacks_line(file: Path) -> bool:
    """Return whether Hydra finds no `# @package` in a file: it reads the lines before the first other one."""
    if not file.is_file():
        return False
    lines = [line.strip() for line in read_marked(file, errors="replace").splitlines()]
    first = next((line for line in lines if line), "")
    return not re.match(r"#+\s*@package\s", first)


def _texts(content: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in content.items() if key != "defaults"}
