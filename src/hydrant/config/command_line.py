"""Check the command line, with clearer messages than those of Hydra and argparse. Write overrides as Hydra needs them.

Several options of one group may be chosen: `tracker=[wandb,tensorboard]`, or `override /tracker: [...]` in a config
file. Hydra would merge them into one node, in which each overwrites the keys of the one before. So only the first one
stays at the key of the group (`tracker.project`). Every other one is composed at a key of its own
(`trackers.tensorboard.flush_seconds`), as `+tracker@trackers.tensorboard=tensorboard` does.
"""

import argparse
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, RangeSweep
from hydra.errors import HydraException

from hydrant.config.groups import LISTED_GROUPS, TrainConfig, group_options, own_words
from hydrant.errors import ConfigError, first_line, near_folders, quoted, shown, suggestion
from hydrant.files.plain_values import children
from hydrant.files.read_file import MAX_DEPTH, TEXT_KEYS
from hydrant.terminal.console import FLAG

PLURALS = {"tracker": "trackers"}
"""The groups of which a run takes several options, and the key of the second and all further ones."""


SCHEME = "hydrant"
"""Of folders on Hydra's search path whose files `file_source` reads."""
_SEARCH_PATH = "hydra.searchpath"

_NUMBER = re.compile(r"[-+]?[\d._]+(e[-+]?[\d_]+)?", re.IGNORECASE)
"""Everything that Hydra's grammar reads as a number, and some other texts."""


def expand_lists(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with one option each, for Hydra. An override that cannot be parsed is returned as it is.

    A name that looks like a number is put in quotes, so that it stays as it was typed.

    >>> expand_lists(["tracker=[wandb,tensorboard]", "seed=1", "name=1e5"])
    ['tracker=wandb', '+tracker@trackers.tensorboard=tensorboard', 'seed=1', "name='1e5'"]

    Raises:
        ConfigError: The list is empty, or names an option twice.
    """
    return [word for text in overrides for word in _expanded(text)]


def _expanded(text: str) -> list[str]:
    group, _, value = text.partition("=")
    if group.lstrip("+").rpartition(".")[2] in TEXT_KEYS and _NUMBER.fullmatch(value):
        return [f"{group}='{value}'"]
    if group not in (*PLURALS, _SEARCH_PATH) or not value.lstrip().startswith("["):
        return [text]
    try:
        names: Any = parsed(text).value()
    except ConfigError:  # `check_overrides` reports it
        return [text]
    if group == _SEARCH_PATH:
        items = names if isinstance(names, list) else []  # Hydra says what is wrong with another value
        paths = [QuotedString(str(with_limits(path)), Quote.single).with_quotes() for path in items]
        return [f"{group}=[{','.join(paths)}]" if items else text]
    first, *further = _checked(group, names, value)
    return [f"{group}={first}", *(f"+{group}@{PLURALS[group]}.{name}={name}" for name in further)]


def with_limits(path: Any) -> Any:
    """Return an entry of Hydra's search path so that `file_source` reads it, if it is a folder.

    >>> with_limits("file:///conf"), with_limits("conf"), with_limits("pkg://conf")
    ('hydrant:///conf', 'hydrant://conf', 'pkg://conf')
    """
    is_folder = isinstance(path, str) and (path.startswith("file://") or "://" not in path)
    return f"{SCHEME}://{path.removeprefix('file://')}" if is_folder else path


def expand_defaults(defaults: Sequence[Any]) -> list[Any]:
    """Return the defaults list of a config file with one option each, for Hydra.

    >>> expand_defaults(["_self_", {"override /tracker": ["wandb", "tensorboard"]}])
    ['_self_', {'/tracker@_global_.trackers.tensorboard': 'tensorboard'}, {'override /tracker': 'wandb'}]

    Raises:
        ConfigError: The list is empty, or names an option twice.
    """
    firsts: list[Any] = []
    further: list[Any] = []
    for entry in defaults:
        group, options = next(iter(entry.items())) if isinstance(entry, dict) else (entry, None)
        name = group.rpartition(" ")[2].removeprefix("/")  # without `override`
        if name in PLURALS and isinstance(options, list):
            first, *more = _checked(name, options, shown(options))
            firsts.append({group: first})
            further += [{f"/{name}@_global_.{PLURALS[name]}.{option}": option} for option in more]
        else:
            firsts.append(entry)
    is_override = [isinstance(entry, dict) and next(iter(entry)).startswith("override ") for entry in firsts]
    position = is_override.index(True) if True in is_override else len(firsts)  # Hydra wants overrides last
    return [*firsts[:position], *further, *firsts[position:]]


def _checked(group: str, names: Any, text: str) -> list[str]:
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or not names or len(set(names)) < len(names):
        remedy = f"write {group}=[wandb,tensorboard]"
        raise ConfigError(group, f"needs one or more options, each once, not {text}", remedy=remedy)
    return names


MAX_JOBS = 10_000
"""The most jobs of a grid. Each has its own folder and process, and all are checked before the first one starts."""


class Flags(argparse.ArgumentParser):
    """The flags of a command. Words without a dash, such as overrides, are returned as they are.

    Args:
        command: its name.
        flags: the default of each flag, or the type of one without a default. One that is False takes no value.

    >>> Flags("study", jobs=4, out=Path, dry_run=False).split(["--jobs", "2", "lr=1"])
    (Namespace(json=False, jobs=2, out=None, dry_run=False), ['lr=1'])
    """

    def __init__(self, command: str, **flags: object) -> None:
        super().__init__(prog=f"hydrant {command}", add_help=False, allow_abbrev=False)
        for name, value in {FLAG.lstrip("-"): False, **flags}.items():  # `hydrant.cli` reads FLAG
            kind, default = (value, None) if isinstance(value, type) else (type(value), value)
            settings: dict[str, Any] = {"action": "store_true"} if value is False else {"type": kind}
            self.add_argument(f"--{name.replace('_', '-')}", default=default, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError, where argparse would print its usage and exit."""
        text = message.removeprefix("argument ")
        raise ConfigError("", f"{self.prog}: {text}", about=text.partition(":")[0])

    def split(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the parsed flags, and all other words in their order.

        Raises:
            ConfigError: A flag is unknown or lacks its value.
        """
        flags, further = self.parse_known_args(list(arguments))
        words = [word for word in further if word != "--"]
        for word in words:
            if word.startswith("-"):
                raise unknown_flag(self.prog, word, self.options(), arguments)
        return flags, words

    def options(self) -> list[str]:
        """Return the names of all flags."""
        return list(self._option_string_actions)


def unknown_flag(command: str, flag: str, known: Iterable[str], arguments: Sequence[str]) -> ConfigError:
    """Return the error for a flag among the arguments of a command that it does not have."""
    name, equals, value = flag.partition("=")
    key, place = name.lstrip("-"), list(arguments).index(flag) + 1
    if not equals:
        value = next((word for word in arguments[place : place + 1] if not word.startswith("-")), "<value>")
    is_key = key.partition(".")[0] in get_type_hints(TrainConfig)
    words = own_words(key.replace("-", "_"), value, missing="" if is_key else key)
    if words is None and is_key:
        words = f"write {key}={quoted(value)}"
    words = words or suggestion(name, [option for option in known if option.startswith("--")], "Flags")
    return ConfigError("", f"{command} has no flag {name}", remedy=words, about=name)


@contextmanager
def writing_to(flag: str, path: Path, suffix: str = "") -> Generator[None]:
    """Create the parent folder of the file that `flag` names. The body of the `with` block writes the file.

    Args:
        flag, path: of the file.
        suffix: of the files that may be replaced; "": the caller has checked that.

    Raises:
        ConfigError: The file cannot be written, or would replace one of another kind.
    """
    if suffix and path.is_file() and path.suffix.lower() != suffix:
        raise ConfigError(flag, f"{path} exists, and is no {suffix} file", remedy="give another path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        yield
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror or error})"
        raise ConfigError(flag, message, remedy="give another path") from error


def named_folder(word: str, is_meant: Callable[[Path], bool] = Path.is_dir) -> Path:
    """Return the folder that a word names, absolute; a link stays. `is_meant`: which folders a message suggests.

    Raises:
        ConfigError: there is no such folder.
    """
    folder = Path(os.path.abspath(word))  # noqa: PTH100
    if not folder.is_dir():
        remedy = near_folders(Path(word), is_meant) or "give the folder of a run or a sweep"
        raise ConfigError("FOLDER", f"{word!r} is not a folder", remedy=remedy)
    return folder


def is_override(word: str) -> bool:
    """Return whether a word changes the config, and is no path such as `multirun/study/seed=0`.

    >>> is_override("data.root=/data"), is_override("~hooks"), is_override("multirun/study/seed=0")
    (True, True, False)
    >>> is_override("hydra/sweeper=grid")
    True
    """
    key, equals, _ = word.partition("=")
    is_key = "/" not in key or key.lstrip("+~").partition("@")[0] in group_options()
    has_form = is_key if equals else word.startswith("~")
    return has_form and not os.path.exists(word)  # noqa: PTH110  # of any length


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse overrides that cannot be parsed, and values that cannot be an option of a group.

    Raises:
        ConfigError: Names the key, if there is one.
    """
    if not overrides:
        return
    options = group_options()
    for text in expand_lists(overrides):
        key, equals, value = text.partition("=")
        has_key = bool(key.strip("+~ "))
        if not has_key or not (equals or text.startswith("~")):
            remedy = own_words(text, "<value>") or "write <key>=<value>, without spaces around ="
            message = f"{_abridged(text)!r} has no {'value' if has_key else 'key'}"
            raise ConfigError("", message, remedy=remedy)
        name = key.lstrip("+~")
        if name.partition(".")[0] not in options and (words := own_words(name, value)):
            raise ConfigError(name, "no such key", remedy=_abridged(words))
        override = parsed(text)
        group = override.key_or_group
        if (group in options or re.match("hydra(/|$)", group)) and not override.is_delete():
            _check_options(override, options.get(group, []))


@lru_cache(1000)  # jobs have most words in common
def parsed(text: str) -> Override:
    """Return a parsed override, which knows no options: nothing can ask it for the values of `glob(*)`.

    Raises:
        ConfigError: It cannot be parsed.
    """
    key, _, value = text.partition("=")
    name, depth = key.lstrip("+~"), MAX_DEPTH + 1
    try:
        override = OverridesParser.create().parse_override(text)
        depth = key.count(".") + _depth(override.value())
    except RecursionError:
        override = None
    except (HydraException, ValueError) as error:  # ValueError: a number of 5,000 digits
        remedy = f"close all brackets and quotes; put plain text in quotes: \"{key}='...'\""
        message = f"{_abridged(value)!r} cannot be parsed ({_abridged(first_line(error))})"
        raise ConfigError(name, message, remedy=remedy) from error
    if override is None or depth > MAX_DEPTH:
        raise ConfigError(name, f"is nested more than {MAX_DEPTH} levels deep")
    return override


def check_grid(overrides: Iterable[Override]) -> None:
    """Refuse overrides from which a grid cannot make jobs, or too many. Of several for a key, the last one counts.

    Raises:
        ConfigError: Names the key.
    """
    last = {override.get_key_element().lstrip("+~"): override for override in overrides}
    num_jobs = 1
    for key, override in last.items():
        if not override.is_sweep_override():
            continue
        if not override.is_discrete_sweep():
            remedy = f"write {key}=0.1,0.2 or {key}=range(1,4)"
            raise ConfigError(key, "a grid needs a list of values", remedy=remedy)
        if key == "sweep":
            remedy = "write the values of the other one: sweep=optimizers seed=0,1"
            raise ConfigError(key, "takes one grid", remedy=remedy)
        values = swept_values(key, override)
        if not values:
            raise ConfigError(key, f"{_value_text(override)} contains no value, so there is nothing to run")
        num_jobs *= len(values[: MAX_JOBS + 1])
        if num_jobs > MAX_JOBS:
            message = f"{_value_text(override)} makes more than {MAX_JOBS:,} jobs"
            remedy = "give fewer values, or train parts of the grid one by one"
            raise ConfigError(key, message, remedy=remedy)


def swept_values(key: str, override: Override) -> Sequence[Any]:
    """Return the values of an override for a sweep: a `range` for whole numbers, else at most `MAX_JOBS` + 1 values.

    Raises:
        ConfigError: They cannot be listed.
    """
    value: Any = override.value()
    try:
        values = value.range() if isinstance(value, RangeSweep) else override.sweep_string_iterator()
        return values if isinstance(values, range) else list(islice(values, MAX_JOBS + 1))
    except (HydraException, ValueError, ArithmeticError) as error:
        raise ConfigError(key, f"{_value_text(override)} has no values ({first_line(error)})") from error


def _value_text(override: Override) -> str:
    return _abridged(str(override.input_line).partition("=")[2])


def _abridged(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."


def _depth(value: Any) -> int:
    return 1 + max((_depth(item) for _, item in children(value, "")), default=0)


def refuse_sweep(choices: Mapping[str, Any], hydra_overrides: Sequence[str]) -> None:
    """Raise ConfigError if a command that trains one config has a grid such as `sweep=seeds`, or settings of sweeps."""
    if (grid := choices.get("sweep")) is not None:
        raise ConfigError("sweep", f"{grid} makes several runs", remedy="add --multirun to train them")
    for override in hydra_overrides:
        key = override.lstrip("+~").partition("=")[0]
        if re.match(r"hydra[./](launcher|sweeper|sweep)\b", key):
            raise ConfigError(key, "is a setting of sweeps", remedy="add --multirun, or leave it out")


def _check_options(override: Override, options: Sequence[str]) -> None:
    value: Any = override.value()
    group = str(override.key_or_group)
    for option in getattr(value, "list", [value]):  # the list of a choice sweep; glob(*) has none
        is_list = isinstance(option, list) and group in LISTED_GROUPS
        for name in option if is_list else [option]:
            if name is None or isinstance(name, (int, float, list)) or (is_list and name not in options):
                remedy = own_words(group, str(name), options) or suggestion(str(name), options)
                raise ConfigError(group, f"no option {shown(name)}", remedy=remedy)
