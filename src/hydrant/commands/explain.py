"""`explain`: print the files of conf folders, which explain every option and key, or the lines of one key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from hydrant.config.command_line import Flags
from hydrant.config.foreign_words import own_words
from hydrant.config.groups import conf_dir, group_options, option_path, options_with
from hydrant.editor.option_files import Key, read_option
from hydrant.errors import ConfigError, first_line, shown, unknown_name
from hydrant.terminal.console import emit
from hydrant.terminal.text_table import align_columns

_PRIMARY = "train"
_WANDB_SWEEPS = "wandb_sweep"
"""Files for `wandb sweep`, which are no options of a group."""

_PLACED = {"hooks": "hook", "trackers": "tracker"}
"""Keys that hold options by name, and the group of these options."""


def main(arguments: Sequence[str]) -> int:
    """Explain options, groups and keys, and return the exit status."""
    _, words = Flags("explain").split(arguments)
    groups = _groups()
    try:
        texts = [_explained(word, groups) for word in words or [_PRIMARY]]
    except yaml.YAMLError as error:
        raise ConfigError("", f"a file in the conf folder is no YAML ({first_line(error)})") from error
    emit("\n\n".join(texts))
    return 0


def _groups() -> dict[str, list[str]]:
    files = (conf_dir() / _WANDB_SWEEPS).glob("*.yaml")
    return group_options() | {_WANDB_SWEEPS: sorted(path.stem for path in files)}


def _explained(word: str, groups: dict[str, list[str]]) -> str:
    group, equals, option = word.partition("=")
    if word == _PRIMARY:
        return _file(option_path("", _PRIMARY))
    if group not in groups or "." in group:
        return _key(group, groups)
    if not equals:
        return _group(group, groups[group])
    if option not in groups[group]:
        raise unknown_name("", f"{group} option", option, groups[group])
    return "\n\n".join(_file(path) for path in _with_bases(group, option))


def _file(path: Path) -> str:
    """Return the text of a file after its path. An installed Hydrant has no train.py."""
    text = path.read_text(encoding="utf-8-sig").rstrip().replace("python train.py", "hydrant train")
    return f"# {path}\n{text}"


def _with_bases(group: str, option: str) -> Iterator[Path]:
    """Yield the file of an option, and those of its group that it includes and that are no options themselves."""
    path = option_path(group, option)
    yield path
    content = yaml.safe_load(path.read_text(encoding="utf-8-sig")) or {}
    for item in content.get("defaults", []):
        if isinstance(item, str) and item.startswith("_") and item != "_self_":
            yield from _with_bases(group, item)


def _group(group: str, options: Sequence[str]) -> str:
    lines = [[f"{group}={option}", _first_comment(option_path(group, option))] for option in options]
    return "\n".join(
        [*_columns(lines), f"\nhydrant explain {group}={options[0]} prints the file of an option."]
    )


def _first_comment(path: Path) -> str:
    comments = [
        line.lstrip("# ")
        for line in path.read_text(encoding="utf-8-sig").splitlines()
        if line.startswith("#")
    ]
    text = next((line for line in comments if line and not line.startswith("@package")), "")
    return text.partition("    ")[0]  # without the example


def _key(key: str, groups: dict[str, list[str]]) -> str:
    """Return the default and the comment of a key, in each option of its group that has it."""
    top, _, inner = key.partition(".")
    if top in _PLACED:
        name, _, inner = inner.partition(".")
        files = {f"{_PLACED[top]}={name}": (_PLACED[top], name)} if name in groups[_PLACED[top]] else {}
    else:
        files = {f"{top}={name}": (top, name) for name in groups.get(top, [])} or {"": ("", _PRIMARY)}
    keys = {option: read_option(*file).keys for option, file in files.items()}
    path = inner if "" not in files else key
    lines = [[option, *_parts(key, found)] for option in keys if (found := _inner(keys[option], path))]
    if not lines and not inner and (having := [group for group in groups if options_with(group, top)]):
        return "\n".join(_key(f"{group}.{top}", groups) for group in having)
    if not lines and (words := own_words(key, "<value>")):
        raise ConfigError("", f"no key {key!r}; {words}")
    if not lines:
        known = [f"{top}.{name}" for of_option in keys.values() for name in of_option if name[0] != "_"]
        raise unknown_name(
            "", "group or key", key, dict.fromkeys(known) if "" not in files else [*keys[""], *groups]
        )
    return "\n".join(line.strip() for line in _columns(lines))


def _inner(keys: Mapping[str, Key], path: str) -> Key | None:
    name, _, rest = path.partition(".")
    key = keys.get(name)
    return _inner(key.inner, rest) if key and rest else key


def _parts(path: str, key: Key) -> list[str]:
    """Return a key with its default, and the comment."""
    default = key.default if isinstance(key.default, str) else shown(key.default)
    return [f"{path}: {default}", f"# {key.comment}" if key.comment else ""]


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    return [line.rstrip() for line in align_columns(lines, {0, 1, 2})]
