"""`explain`: print the files of conf folders, which explain every option and key, or the lines of one key."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hydrant.checks import check_known, unknown_name
from hydrant.config import groups as config_groups
from hydrant.config.command_line import Flags
from hydrant.config.foreign_words import own_words
from hydrant.editor.option_files import Key, first_comment, read_option
from hydrant.errors import ConfigError, first_line
from hydrant.files.user_files import read_marked
from hydrant.terminal.console import emit, tell
from hydrant.terminal.text import align_columns

_PRIMARY = "train"
_WANDB_SWEEPS = "wandb_sweep"
"""Files for `wandb sweep`, which are no options of a group."""

_PLACED = {"hooks": "hook", "trackers": "tracker"}
"""Keys that hold options by name, and the group of these options."""


@dataclass(frozen=True)
class _Explained:
    """What is known about a word: files, the options of a group, or a key in the options that have it."""

    files: Sequence[Path] = ()
    group: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])  # the first comment of each
    keys: Sequence[tuple[str, str, Key]] = ()  # option, path and key

    def text(self) -> str:
        """Return it as lines."""
        parts = [f"# {path}\n{_text(path)}" for path in self.files]
        if self.options:
            rows = [[f"{self.group}={name}", comment] for name, comment in self.options.items()]
            first = f"{self.group}={next(iter(self.options))}"
            parts.append("\n".join(_columns(rows)))
            parts.append(f"hydrant explain {first} prints the file of an option.")
        if self.keys:
            rows = [
                [option, f"{path}: {key.default_text}", f"# {key.comment}" * bool(key.comment)]
                for option, path, key in self.keys
            ]
            parts.append("\n".join(line.strip() for line in _columns(rows)))
        return "\n\n".join(parts)

    def plain(self) -> dict[str, Any]:
        """Return it in plain types."""
        keys = [
            {"option": option, "key": path, "default": key.default, "comment": key.comment}
            for option, path, key in self.keys
        ]
        files = [{"file": str(path), "text": _text(path)} for path in self.files]
        return {"files": files, "options": dict(self.options), "keys": keys}


def main(arguments: Sequence[str]) -> int:
    """Explain options, groups and keys, and return the exit status."""
    _, words = Flags("explain").split(arguments)
    groups = _groups()
    try:
        explained = {word: _explained(word, groups) for word in words or [_PRIMARY]}
    except yaml.YAMLError as error:
        raise ConfigError("", f"a file in the conf folder is no YAML ({first_line(error)})") from error
    content = {"explained": {word: answer.plain() for word, answer in explained.items()}}
    tell("\n\n".join(answer.text() for answer in explained.values()), content, emit)
    return 0


def _groups() -> dict[str, list[str]]:
    files = (config_groups.conf_dir() / _WANDB_SWEEPS).glob("*.yaml")
    return config_groups.group_options() | {_WANDB_SWEEPS: sorted(path.stem for path in files)}


def _explained(word: str, groups: dict[str, list[str]]) -> _Explained:
    group, equals, option = word.partition("=")
    if word == _PRIMARY:
        return _Explained([config_groups.option_path("", _PRIMARY)])
    if group not in groups or "." in group:
        return _Explained(keys=_key(group, groups))
    if not equals:
        comments = {
            name: first_comment(_text(config_groups.option_path(group, name))) for name in groups[group]
        }
        without_examples = {name: comment.partition("    ")[0] for name, comment in comments.items()}
        return _Explained(group=group, options=without_examples)
    check_known("", f"{group} option", option, groups[group])
    return _Explained(list(_with_bases(group, option)))


def _text(path: Path) -> str:
    """Return the text of a file. An installed Hydrant has no train.py."""
    return read_marked(path).rstrip().replace("python train.py", "hydrant train")


def _with_bases(group: str, option: str) -> Iterator[Path]:
    """Yield the file of an option, and those of its group that it includes and that are no options themselves."""
    yield config_groups.option_path(group, option)
    for name in config_groups.included_options(config_groups.option_content(group, option)):
        if name.startswith("_"):
            yield from _with_bases(group, name)


def _key(key: str, groups: dict[str, list[str]]) -> list[tuple[str, str, Key]]:
    """Return a key in each option of its group that has it, as option, path and key.

    Raises:
        ConfigError: no option has it.
    """
    top, _, inner = key.partition(".")
    if top in _PLACED:
        name, _, inner = inner.partition(".")
        files = {f"{_PLACED[top]}={name}": (_PLACED[top], name)} if name in groups[_PLACED[top]] else {}
    else:
        files = {f"{top}={name}": (top, name) for name in groups.get(top, [])} or {"": ("", _PRIMARY)}
    keys = {option: read_option(*file).keys for option, file in files.items()}
    path = inner if "" not in files else key
    rows = [(option, key, inside) for option in keys if (inside := _inner(keys[option], path))]
    if (
        not rows
        and key == top
        and (having := [group for group in groups if config_groups.options_with(group, top)])
    ):
        return [row for group in having for row in _key(f"{group}.{top}", groups)]
    if not rows and (words := own_words(key, "<value>")):
        raise ConfigError("", f"no key {key!r}", remedy=words)
    if not rows:
        known = [f"{top}.{name}" for of_option in keys.values() for name in of_option if name[0] != "_"]
        raise unknown_name(
            "", "group or key", key, dict.fromkeys(known) if "" not in files else [*keys[""], *groups]
        )
    return rows


def _inner(keys: Mapping[str, Key], path: str) -> Key | None:
    name, _, rest = path.partition(".")
    key = keys.get(name)
    return _inner(key.inner, rest) if key and rest else key


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    return [line.rstrip() for line in align_columns(lines, {0, 1, 2})]
