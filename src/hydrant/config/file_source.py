"""The source from which Hydra reads config files. An error names the file that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrant.config.option_lists import expand_defaults
from hydrant.errors import ConfigError, shown, suggestion
from hydrant.files.bounded_yaml import BoundedComposer, reason_of
from hydrant.files.read_file import check_plain
from hydrant.files.regular_file import check_regular

_ERRORS = (OSError, YAMLError, OmegaConfBaseException, ValueError, LookupError, TypeError, AttributeError,
           ArithmeticError)  # fmt: skip
"""The errors of reading and parsing. The built-in ones come from scalars that do not fit their tag, such as `!!int
x`."""

PACKAGE_KEYWORDS = ("_global_", "_group_", "_name_", "_here_")


class FileConfigSource(file_config_source.FileConfigSource):
    """Replaces the class that has this name in Hydra, and gives the same configs.

    Only lists of options, such as `override /tracker: [wandb, tensorboard]`, are expanded.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a config file.

        Raises:
            ConfigError: It cannot be read, or is not a config.
        """
        file = Path(self.path, self._normalize_file_name(config_path))
        try:
            check_regular(file)
            text = file.read_text(encoding="utf-8-sig")
            content = yaml.load(text, _loader())
            _check(content)
            if content and "defaults" in content:
                content["defaults"] = expand_defaults(content["defaults"])
            header = self._get_header_dict(text[:512])
            _check_package(header["package"])
            config = OmegaConf.create(content or {})
        except _ERRORS as error:
            raise ConfigError("", f"{file}: {reason_of(error)}") from error
        return ConfigResult(self.provider, f"{self.scheme()}://{self.path}", config, header)


def register() -> None:
    """Let Hydra read the paths of its search path with this class."""
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource


def _loader() -> Any:
    """Return OmegaConf's loader with limits."""
    return type("Loader", (BoundedComposer, get_yaml_loader()), {})


def _check(content: Any) -> None:
    """Refuse content that is no config.

    Raises:
        ValueError: Says why.
    """
    if not isinstance(content, dict | None):
        raise ValueError("is no mapping of keys to values")
    check_plain(content)
    defaults = (content or {}).get("defaults", [])
    if not isinstance(defaults, list):
        raise ValueError(f"defaults: needs a list, not {shown(defaults)}")
    chosen = dict[str, Any]()
    for entry in defaults:
        if not _is_default(entry):
            is_other = isinstance(entry, dict) and any(
                isinstance(name, int | float) for name in entry.values()
            )
            remedy = "; put a name in quotes that YAML reads as a number, true or false" if is_other else ""
            raise ValueError(f"defaults: needs entries such as 'model: mlp', not {shown(entry)}{remedy}")
        group, option = next(iter(entry.items())) if isinstance(entry, dict) else ("", None)
        if group.startswith("override ") and group in chosen:  # Hydra would take the first one
            message = f"chooses {shown(chosen[group])} and {shown(option)}; keep one"
            raise ValueError(f"defaults: {group} {message}")
        chosen[group] = option


def _check_package(package: str | None) -> None:
    """Refuse a header `# @package` that begins like a keyword of Hydra and is none, such as `_global`.

    Raises:
        ValueError: Says which keywords there are.
    """
    first = (package or "").partition(".")[0]
    if first.startswith("_") and first not in PACKAGE_KEYWORDS:
        raise ValueError(f"no place {first!r} for @package{suggestion(first, PACKAGE_KEYWORDS, 'Places')}")


def _is_default(entry: Any) -> bool:
    """Whether an entry of a defaults list names a config, or a group with its option, several options or null."""
    if not isinstance(entry, dict) or len(entry) != 1:
        return isinstance(entry, str)
    [(group, option)] = entry.items()
    options = option if isinstance(option, list) else [option]
    return isinstance(group, str) and all(isinstance(name, str | None) for name in options)
