"""`explain`: print the files of conf folders, which explain options and keys, or the lines of one key; and `list`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hydrant.commands.registry import page
from hydrant.config import groups as config_groups
from hydrant.config.command_line import Flags
from hydrant.config.groups import TrainConfig, group_options
from hydrant.config.instantiate import type_hints_of
from hydrant.errors import ConfigError, check_known, shown, suggestion
from hydrant.extensions.editor.foreign_words import own_words
from hydrant.extensions.editor.json_schema import Key, documented, first_comment, known, read_option
from hydrant.files.on_disk import read_marked
from hydrant.files.plain_values import describe
from hydrant.records import Answer
from hydrant.terminal.console import emit, tell
from hydrant.terminal.text import align_columns

_PRIMARY = "train"
_WANDB_SWEEPS = "wandb_sweep"
"""Files for `wandb sweep`, which are no options of a group."""

_PLACED = {"hooks": "hook", "trackers": "tracker"}
"""Keys that hold options by name, and the group of these options."""


class ExplainedFile(Answer):
    """A file of the config or of an option.

    Attributes:
        text: YAML with comments.
    """

    file: str
    text: str


class ExplainedKey(Answer):
    """A key in an option.

    Attributes:
        option: The option that has the key; empty for the config itself.
        needs: What values it takes, such as `a number from 0 to 1`; empty if no type hint says it.
    """

    option: str
    key: str
    default: Any
    comment: str
    needs: str


class Explained(Answer):
    """What is known about a word.

    Attributes:
        files: Of the config or of an option.
        options: The options of a group, with the first comment of each.
        keys: Of a key, in each option that has it.
    """

    files: Sequence[ExplainedFile]
    options: Mapping[str, str]
    keys: Sequence[ExplainedKey]


class Explain(Answer):
    """What is known about each word.

    Attributes:
        explained: By word.
    """

    explained: Mapping[str, Explained]


def main(arguments: Sequence[str]) -> int:
    """Explain options, groups and keys, and return the exit status."""
    _, words = Flags("explain").split(arguments)
    groups = _groups()
    explained = {word: _explained(word, groups) for word in words or [_PRIMARY]}
    tell("\n\n".join(_lines(*item) for item in explained.items()), Explain(explained), emit)
    return 0


def _lines(word: str, explained: Explained) -> str:
    parts = [f"# {file.file}\n{file.text}" for file in explained.files]
    if explained.options:
        rows = [[f"{word}={name}", comment] for name, comment in explained.options.items()]
        parts.append("\n".join(_columns(rows)))
        parts.append(f"hydrant explain {rows[0][0]} prints the file of an option.")
    if explained.keys:
        rows = list[list[str]]()
        for key in explained.keys:
            default = key.default if isinstance(key.default, str) else shown(key.default)
            remark = f"{key.comment} {f'({key.needs})' if key.needs else ''}".strip()
            rows.append([key.option, f"{key.key}: {default}", f"# {remark}" if remark else ""])
        parts.append("\n".join(line.strip() for line in _columns(rows)))
    return "\n\n".join(parts)


def _groups() -> dict[str, list[str]]:
    folders = [folder / _WANDB_SWEEPS for folder in config_groups.conf_dirs()]
    names = sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))
    return config_groups.group_options() | ({_WANDB_SWEEPS: names} if names else {})


def _explained(word: str, groups: dict[str, list[str]]) -> Explained:
    group, equals, option = word.partition("=")
    if word == _PRIMARY:
        return _files([config_groups.option_path("", _PRIMARY)])
    if group not in groups or "." in group:
        return Explained([], {}, _key(group, groups))
    if not equals:
        texts = {name: _text(config_groups.option_path(group, name)) for name in groups[group]}
        comments = {name: first_comment(text).partition("    ")[0] for name, text in texts.items()}
        return Explained([], comments, [])
    check_known("", f"{group} option", option, groups[group])
    return _files(_with_bases(group, option))


def _files(paths: Iterable[Path]) -> Explained:
    return Explained([ExplainedFile(str(path), _text(path)) for path in paths], {}, [])


def _text(path: Path) -> str:
    """Return the text of a file. An installed Hydrant has no train.py."""
    return read_marked(path).rstrip().replace("python train.py", "hydrant train")


def _with_bases(group: str, option: str) -> Iterator[Path]:
    """Yield the file of an option, and those of its group that it includes and that are no options themselves."""
    yield config_groups.option_path(group, option)
    for name in config_groups.included_options(config_groups.option_content(group, option)):
        if name.startswith("_"):
            yield from _with_bases(group, name)


def _key(key: str, groups: dict[str, list[str]]) -> list[ExplainedKey]:
    """Return a key in each option of its group that has it.

    Raises:
        ConfigError: no option has it.
    """
    top, _, inner = key.partition(".")
    group, name = top, ""
    if top in _PLACED:
        group = _PLACED[top]
        name, _, inner = inner.partition(".")
    names = [option for option in groups.get(group, []) if name in ("", option)]
    files = {f"{group}={option}": read_option(group, option) for option in names}
    path, owner = inner, None
    if not files and top not in _PLACED:
        files, path, owner = {"": read_option("", _PRIMARY)}, key, TrainConfig
    rows = [
        ExplainedKey(
            option, key, inside.default, inside.comment or documented(about, path), _needs(about, path)
        )
        for option, file in files.items()
        if (inside := _inner(file.keys, path)) and [about := owner or known(file.target)]
    ]
    if rows:
        return rows
    if key == top and (having := [group for group in groups if config_groups.options_with(group, top)]):
        return [row for group in having for row in _key(f"{group}.{top}", groups)]
    names = [name for file in files.values() for name in file.keys if name[0] != "_"]
    options = [*names, *groups] if owner else [f"{top}.{name}" for name in names]
    remedy = own_words(key, "<value>") or suggestion(key, options)
    raise ConfigError("", f"unknown group or key {key!r}", remedy=remedy)


def _needs(owner: Any, path: str) -> str:
    """Return what a key needs by the type hint of an argument or a field of `owner`; "" if that is not known."""
    name, _, rest = path.partition(".")
    hint = type_hints_of(owner).get(name, Any) if owner else Any
    if rest:
        return _needs(hint, rest) if is_dataclass(hint) else ""
    return "" if hint in (Any, object) else describe(hint)


def _inner(keys: Mapping[str, Key], path: str) -> Key | None:
    name, _, rest = path.partition(".")
    key = keys.get(name)
    return _inner(key.inner, rest) if key and rest else key


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    return [line.rstrip() for line in align_columns(lines, {0, 1, 2})]


class List(Answer):
    """The config groups.

    Attributes:
        groups: The options of each.
    """

    groups: Mapping[str, Sequence[str]]


def list_groups(arguments: Sequence[str]) -> int:
    """Print the config groups with their options, and return the exit status."""
    _, words = Flags("list").split(arguments)
    check_known("", "list", " ".join(words) or "groups", ["groups"])
    groups = group_options()
    rows = (f"  {name}  {', '.join(options)}" for name, options in groups.items())
    tell(page("\n".join(rows)), List(groups), emit)
    return 0
