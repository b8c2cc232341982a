"""Check the command line, with clearer messages than those of Hydra and argparse."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hydrant.config.groups import group_options
from hydrant.errors import ConfigError, first_line, shown, suggestion


class Flags(argparse.ArgumentParser):
    """The flags of a command. Words without a dash, such as overrides, are returned as they are."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=f"hydrant {command}", add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError, where argparse would print its usage and exit."""
        raise ConfigError("", f"{self.prog}: {message.removeprefix('argument ')}")

    def split(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the parsed flags, and all other words in their order.

        Raises:
            ConfigError: A flag is unknown or lacks its value.
        """
        flags, words = self.parse_known_args(list(arguments))
        for word in words:
            if word.startswith("-"):
                raise unknown_flag(self.prog, word, self._option_string_actions)
        return flags, words


def unknown_flag(command: str, flag: str, known: Any) -> ConfigError:
    """Return the error for a flag that a command does not have."""
    name = flag.partition("=")[0]
    words = [option for option in known if option.startswith("--")]
    return ConfigError("", f"{command} has no flag {name}{suggestion(name, words, 'Flags')}")


@contextmanager
def writing_to(flag: str, path: Path) -> Generator[None]:
    """Create the parent folder of the file that `flag` names. The body of the `with` block writes the file.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        yield
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror or error}); give another path"
        raise ConfigError(flag, message) from error


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `train` with the flags first, because Hydra's parser requires this order.

    >>> flags_first(["seed=1", "--multirun", "optimizer=sgd,adam"])
    ['--multirun', 'seed=1', 'optimizer=sgd,adam']

    Raises:
        ConfigError: A flag is unknown, or an override cannot be parsed.
    """
    parser = get_args_parser()
    parser.error = Flags("train").error  # type: ignore[method-assign]
    known, unknown = parser.parse_known_intermixed_args(list(arguments))
    if known.experimental_rerun is not None:
        unknown = ["--experimental-rerun"]  # reads pickled configs, which Hydrant does not write
    if unknown:
        flags = parser._option_string_actions.keys() - {"--experimental-rerun"}
        raise unknown_flag("hydrant train", unknown[0], flags)
    overrides: list[str] = known.overrides or []
    check_overrides(overrides)
    remaining, flags_and_values = Counter(overrides), list[str]()
    for word in arguments:
        if remaining[word]:
            remaining[word] -= 1
        else:
            flags_and_values.append(word)
    return [*flags_and_values, *overrides]


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides that cannot be parsed, and values that cannot be an option of a group.

    Raises:
        ConfigError: Names the key, if there is one.
    """
    parser = OverridesParser.create()
    options = group_options()
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals and not text.startswith("~"):
            raise ConfigError("", f"{text!r} has no value; write {_suggest_override(text, options)}=<value>")
        if not key.strip("+~ "):
            raise ConfigError("", f"{text!r} has no key; write <key>={value}")
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            remedy = f"close all brackets and quotes; put plain text in quotes: \"{key}='...'\""
            message = f"{value!r} cannot be parsed ({first_line(error)}); {remedy}"
            raise ConfigError(key.lstrip("+~"), message) from error
        if override.key_or_group in options and not override.is_delete():
            _check_options(override, options[override.key_or_group])


def check_sweep(override: Override) -> None:
    """Refuse an override from which a grid cannot make jobs.

    Raises:
        ConfigError: Names the key.
    """
    key = override.get_key_element().lstrip("+~")
    if not override.is_sweep_override():
        return
    if not override.is_discrete_sweep():
        raise ConfigError(key, f"a grid needs a list of values; write {key}=0.1,0.2 or {key}=range(1,4)")
    if not list(override.sweep_string_iterator()):
        text = (override.input_line or key).partition("=")[2]
        raise ConfigError(key, f"{text} contains no value, so there is nothing to run")
    if key == "sweep":
        raise ConfigError(key, "takes one grid; write the values of the other one: sweep=optimizers seed=0,1")
    if key == "name":
        message = "is the folder of the whole sweep, so it takes one value; seed=0,1 trains several runs"
        raise ConfigError(key, message)


def refuse_sweep(choices: Mapping[str, Any], hydra_overrides: Sequence[str]) -> None:
    """Raise ConfigError if a command that trains one config has a grid such as `sweep=seeds`, or settings of sweeps."""
    if (grid := choices.get("sweep")) is not None:
        raise ConfigError("sweep", f"{grid} makes several runs; add --multirun to train them")
    for override in hydra_overrides:
        key = override.lstrip("+~").partition("=")[0]
        if re.match(r"hydra[./](launcher|sweeper|sweep)\b", key):
            raise ConfigError(key, "is a setting of sweeps; add --multirun, or leave it out")


def _suggest_override(text: str, options: dict[str, list[str]]) -> str:
    """Return the override that a single word probably means: `adamw` means `optimizer=adamw`."""
    group = next((group for group, names in options.items() if text in names), None)
    return f"{group}={text} or {text}" if group else text if text.isidentifier() else "<key>"


def _check_options(override: Override, options: Sequence[str]) -> None:
    value: Any = override.value()
    for option in getattr(value, "list", [value]):  # the list of a choice sweep; glob(*) has none
        if isinstance(option, int | float | list | None):
            message = f"no option {shown(option)}{suggestion(str(option), options)}"
            raise ConfigError(str(override.key_or_group), message)
