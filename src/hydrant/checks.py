"""Checks of names and numbers that a user gives, whose errors name what was meant."""

import difflib
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from pathlib import Path

from hydrant.errors import ConfigError, quoted


def nearest(name: str, options: Iterable[str]) -> list[str]:
    """Return up to three options that are similar to `name`, the best first. Case, `-` and `_` are ignored.

    >>> nearest("AdamW", ["adamw", "adam", "sgd"])
    ['adamw', 'adam']
    """
    normalized = {_normalize(option): option for option in options}
    return [normalized[close] for close in difflib.get_close_matches(_normalize(name), list(normalized))]


def _normalize(name: str) -> str:
    return name.lower().replace("-", "_")


_MAX_LISTED = 50  # options in a message
_MAX_BESIDE = 10_000  # names that are read in a folder


def suggestion(name: str, options: Iterable[str], noun: str = "Options") -> str:
    """Return the end of a message about an unknown name: the nearest options, and all of them if they are few.

    >>> suggestion("rellu", ["relu", "tanh"])
    "; did you mean 'relu'? Options: relu, tanh"
    """
    options = sorted(set(options))
    close = nearest(name, options)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    if not options:
        return hint.removesuffix(".")
    if len(options) > _MAX_LISTED:
        return f"{hint} There are {len(options)} {noun.lower()}"
    return f"{hint} {noun}: {', '.join(map(quoted, options))}"


def near_folders(path: Path, is_meant: Callable[[Path], bool] = Path.is_dir) -> str:
    """Return the end of a message about a folder that does not exist: the folders beside it that may be meant.

    The folder of a job begins with what tables call the job: `seed=0` is in `seed-0_model-mlp`.
    """
    names = _names_beside(path, is_meant)
    slug = path.name.replace("=", "-").replace(" ", "_")
    if begun := [name for name in names if slug and name.startswith(slug)]:
        return f"; did you mean {quoted(path.parent / begun[0])}?"
    if path.parent == Path():  # the working folder holds much else
        names = nearest(path.name, names)
    return suggestion(path.name, names, f"Folders in {quoted(path.parent)}") if names else ""


def no_file(key: str, path: Path) -> ConfigError:
    """Return the error for a file that does not exist, with a similar one beside it."""
    close = nearest(path.name, _names_beside(path, Path.is_file))[:1]
    hint = f"did you mean {quoted(path.parent / close[0])}?" if close else ""
    return ConfigError(key, f"there is no file {path}", remedy=hint)


def _names_beside(path: Path, is_meant: Callable[[Path], bool]) -> list[str]:
    """Return names beside a path, in order; none if its folder cannot be read."""
    try:
        return sorted(p.name for p in islice(path.parent.iterdir(), _MAX_BESIDE) if is_meant(p))
    except OSError:
        return []


def unknown_name(key: str, kind: str, name: str, options: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not among the options.

    >>> print(unknown_name("model.name", "activation", "rellu", ["relu", "tanh"]))
    model.name: unknown activation 'rellu'; did you mean 'relu'? Options: relu, tanh
    """
    return ConfigError(key, f"unknown {kind} {name!r}", remedy=suggestion(name, options))


def check_known(
    key: str, kind: str, name: str, options: Collection[str], listed: Collection[str] = ()
) -> None:
    """Raise a ConfigError if a name is none of the options. `listed`: those that the message names; by default all."""
    if name not in options:
        raise unknown_name(key, kind, f"{name}", listed or options)  # code may give a name that is no text
