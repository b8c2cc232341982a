"""The words of the command line, refused here where Hydra's or argparse's own words would not help."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hydrant.errors import ConfigError, first_line, shown, suggestion
from hydrant.options import group_options


class Flags(argparse.ArgumentParser):
    """The flags of a command; what it does not know are overrides and other words without a dash."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=f"hydrant {command}", add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """argparse would print its usage and exit."""
        raise ConfigError("", f"{self.prog}: {message.removeprefix('argument ')}")

    def split(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The flags, and all other words in their order.

        Raises:
            ConfigError: a flag that there is not, or one without its value.
        """
        flags, words = self.parse_known_args(list(arguments))
        for word in words:
            if word.startswith("-"):
                raise unknown_flag(self.prog, word, self._option_string_actions)
        return flags, words


def unknown_flag(command: str, flag: str, known: Any) -> ConfigError:
    """The error for a flag that a command does not have."""
    name = flag.partition("=")[0]
    words = [option for option in known if option.startswith("--")]
    return ConfigError("", f"{command} has no flag {name}{suggestion(name, words, 'Flags')}")


@contextmanager
def written(flag: str, path: Path) -> Generator[None]:
    """Make the folder of a file that `flag` names, for the file to be written inside.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        yield
    except OSError as error:
        raise ConfigError(
            flag, f"{path} cannot be written ({error.strerror or error}); give another"
        ) from error


def flags_first(arguments: Sequence[str]) -> list[str]:
    """The arguments of `train` as Hydra's parser wants them: its flags first, wherever they were written.

    >>> flags_first(["seed=1", "--multirun", "optimizer=sgd,adam"])
    ['--multirun', 'seed=1', 'optimizer=sgd,adam']

    Raises:
        ConfigError: an unknown flag, or an override that cannot be read.
    """
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError("", f"hydrant train: {message.removeprefix('argument ')}")

    parser.error = refuse  # type: ignore[method-assign]
    known, unknown = parser.parse_known_intermixed_args(list(arguments))
    if known.experimental_rerun is not None:
        unknown = ["--experimental-rerun"]  # of files that we do not write
    if unknown:
        flags = parser._option_string_actions.keys() - {"--experimental-rerun"}
        raise unknown_flag("hydrant train", unknown[0], flags)
    overrides: list[str] = known.overrides or []
    check_overrides(overrides)
    remaining, ahead = Counter(overrides), list[str]()
    for word in arguments:
        if remaining[word]:
            remaining[word] -= 1
        else:
            ahead.append(word)
    return [*ahead, *overrides]


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides that cannot be read, and options that can be none.

    Raises:
        ConfigError: names the key, where there is one.
    """
    parser = OverridesParser.create()
    options = group_options()
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals and not text.startswith("~"):
            raise ConfigError("", f"{text!r} gives no value; write {_guess(text, options)}=<value>")
        if not key.strip("+~ "):
            raise ConfigError("", f"{text!r} gives no key; write <key>={value}")
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            remedy = f"brackets and quotes must close; quote what is plain text: \"{key}='...'\""
            raise ConfigError(
                key.lstrip("+~"), f"{value!r} cannot be read ({first_line(error)}); {remedy}"
            ) from error
        if override.key_or_group in options and not override.is_delete():
            _check_options(override, options[override.key_or_group])


def check_sweep(override: Override) -> None:
    """Refuse what a grid has no jobs for.

    Raises:
        ConfigError: names the key.
    """
    key = override.get_key_element().lstrip("+~")
    if not override.is_sweep_override():
        return
    if not override.is_discrete_sweep():
        raise ConfigError(key, f"a grid needs its values; write {key}=0.1,0.2 or {key}=range(1,4)")
    if not list(override.sweep_string_iterator()):
        given = (override.input_line or key).partition("=")[2]
        raise ConfigError(key, f"{given} is no value at all, so there is nothing to run")
    if key == "sweep":
        raise ConfigError(
            "sweep", "one grid at a time; give the values of the other one: sweep=optimizers seed=0,1"
        )
    if key == "name":
        raise ConfigError("name", "names the folder of a sweep, so there is one; seed=0,1 trains several")


def refuse_grid(choices: Mapping[str, Any]) -> None:
    """Raises ConfigError where a grid is chosen (`sweep=seeds`), by those who make one config."""
    if (grid := choices.get("sweep")) is not None:
        raise ConfigError("sweep", f"{grid} makes several runs; add --multirun to train them")


def _guess(text: str, options: dict[str, list[str]]) -> str:
    """What `adamw`, given alone, was meant to be: `optimizer=adamw`."""
    group = next((group for group, names in options.items() if text in names), None)
    return f"{group}={text} or {text}" if group else text if text.isidentifier() else "<key>"


def _check_options(override: Override, options: Sequence[str]) -> None:
    given: Any = override.value()
    for option in getattr(given, "list", [given]):  # glob(*) lists none
        if isinstance(option, str | dict) or not isinstance(option, int | float | list | None):
            continue
        raise ConfigError(
            str(override.key_or_group), f"no option {shown(option)}{suggestion(str(option), options)}"
        )
