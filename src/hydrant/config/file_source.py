"""Where Hydra reads config files: with limits, and a file that cannot be read is named in the error."""

import builtins
import os
import re
from pathlib import Path
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrant.config.command_line import SCHEME, expand_defaults, with_limits
from hydrant.config.compose import take_replaced
from hydrant.config.groups import hydrants_dirs, place_of
from hydrant.errors import ConfigError, shown
from hydrant.files.on_disk import check_regular, read_marked
from hydrant.files.read_file import check_plain, load_config, reason_of

_ERRORS = (OSError, YAMLError, OmegaConfBaseException, ValueError, LookupError, TypeError, AttributeError,
           ArithmeticError)  # fmt: skip
"""The errors of reading and parsing. The built-in ones come from scalars that do not fit their tag, such as `!!int
x`."""


class LimitedFileSource(ConfigSource):
    """A folder of YAML files, as Hydra's own source reads them, except for what only Hydrant has.

    Lists of options, such as `override /tracker: [wandb, tensorboard]`, are expanded, and what `read_file` limits is
    refused.
    """

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a config file.

        Raises:
            ConfigError: It cannot be read, or is not a config.
        """
        file = Path(self._path_of(config_path))
        try:
            check_regular(file)
            text = read_marked(file)
            content = load_config(text)
            _check(content)
            take_replaced(content or {}, config_path)
            if content and "defaults" in content:
                content["defaults"] = expand_defaults(content["defaults"])
            _limit_search_path(content)
            package = _package(text) or place_of(config_path)
            config = OmegaConf.create(content or {})
        except _ERRORS as error:
            raise ConfigError("", f"{file}: {reason_of(error)}") from error
        return ConfigResult(self.provider, self.full_path(), config, {"package": package})

    # Functions of os.path return False where those of Path raise, for a name that is too long, for example.

    def available(self) -> bool:
        return os.path.isdir(self.path)  # noqa: PTH112

    def is_group(self, config_path: str) -> bool:
        return any(os.path.isdir(os.path.join(folder, config_path)) for folder in self._folders())  # noqa: PTH112, PTH118

    def is_config(self, config_path: str) -> bool:
        return os.path.isfile(self._path_of(config_path))  # noqa: PTH113

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        folders = [Path(folder, config_path) for folder in self._folders()]
        entries = [entry for folder in folders if folder.is_dir() for entry in folder.iterdir()]
        groups = {entry.name for entry in entries if entry.is_dir()} - {"__pycache__"}
        configs = {entry.stem for entry in entries if entry.suffix == ".yaml" and entry.is_file()}
        names = {ObjectType.GROUP: groups, ObjectType.CONFIG: configs, None: groups | configs}
        return sorted(names.get(results_filter, set()))

    def _path_of(self, config_path: str) -> str:
        name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        paths = [os.path.join(folder, name) for folder in self._folders()]  # noqa: PTH118
        return next((path for path in paths if os.path.isfile(path)), paths[0])  # noqa: PTH113

    def _folders(self) -> builtins.list[str]:
        """Return the folders of this source: Hydrant's has those of its extensions."""
        folders = builtins.list(map(str, hydrants_dirs()))
        return folders if self.path == folders[0] else [self.path]


def _limit_search_path(content: Any) -> None:
    """Let Hydra read the folders that a primary config adds to its search path by this source too."""
    hydra = (content or {}).get("hydra")
    paths = hydra.get("searchpath") if isinstance(hydra, dict) else None
    if isinstance(hydra, dict) and isinstance(paths, builtins.list):
        hydra["searchpath"] = [with_limits(path) for path in paths]


def _check(content: Any) -> None:
    """Refuse content that is no config.

    Raises:
        ValueError: Says why.
    """
    if content is not None and not isinstance(content, dict):
        raise ValueError("is no mapping of keys to values")
    check_plain(content)
    defaults = (content or {}).get("defaults", [])
    if not isinstance(defaults, list):
        raise ValueError(f"defaults: needs a list, not {shown(defaults)}")
    chosen = dict[str, Any]()
    for entry in defaults:
        if not _is_default(entry):
            raise ValueError(f"defaults: needs entries such as 'model: mlp', not {shown(entry)}")
        group, option = next(iter(entry.items())) if isinstance(entry, dict) else ("", None)
        if group.startswith("override ") and group in chosen:  # Hydra would take the first one
            message = f"chooses {shown(chosen[group])} and {shown(option)}; keep one"
            raise ValueError(f"defaults: {group} {message}")
        chosen[group] = option


def _package(text: str) -> str | None:
    """Return what a header `# @package` says. A header is in the lines before the first other one.

    Raises:
        ValueError: It says nothing, or several things.
    """
    package = None
    for line in filter(None, map(str.strip, text.splitlines())):
        if not (header := re.match(r"#+\s*@(.*)", line)):
            break
        name, *values = header[1].split()
        if len(values) != 1:
            raise ValueError(f"{'Too many components' if values else 'Expected a value'} in {line!r}")
        package = values[0] if name == "package" else package
    return package


def _is_default(entry: Any) -> bool:
    """Whether an entry of a defaults list names a config, or a group with its option, several options or null."""
    if not isinstance(entry, dict) or len(entry) != 1:
        return isinstance(entry, str)
    [(group, option)] = entry.items()
    options = option if isinstance(option, list) else [option]
    return isinstance(group, str) and all(isinstance(name, str | None) for name in options)
