"""The YAML files of conf folders as editors see them: keys with defaults and comments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hydrant.config.groups import option_path
from hydrant.errors import shown
from hydrant.files.bounded_yaml import MarkingLoader
from hydrant.files.user_files import read_marked


@dataclass(frozen=True)
class Key:
    """A key of a file: its default, the comment after it, and the keys of the mapping that it holds, if any."""

    default: Any = None
    comment: str = ""
    inner: Mapping[str, Key] = field(default_factory=dict["str", "Key"])

    @property
    def default_text(self) -> str:
        return self.default if isinstance(self.default, str) else shown(self.default)


@dataclass(frozen=True)
class OptionFile:
    """An option of a group, or the primary config. `keys` include those of the files in its defaults list."""

    name: str
    comment: str  # the first line that is not `@package`
    keys: Mapping[str, Key]

    @property
    def target(self) -> str | None:
        """The `_target_`, if it is known."""
        target = self.keys["_target_"].default if "_target_" in self.keys else None
        return target if isinstance(target, str) and target != "???" else None


def read_option(group: str, name: str) -> OptionFile:
    """Read an option from the user's conf folder or, if it is not there, from Hydrant's. `group` is "" for train.yaml.

    Raises:
        OSError: there is no such file.
        yaml.YAMLError: it is no YAML.
    """
    return _read(option_path(group, name), group, name)


def _read(path: Path, group: str, name: str) -> OptionFile:
    text = read_marked(path)
    content = yaml.load(text, MarkingLoader) or {}
    own_keys = _keys(yaml.compose(text, MarkingLoader), content, text.splitlines())
    keys = dict[str, Key]()
    for item in content.get("defaults", []):
        keys |= _included(group, item)
    own_keys.pop("defaults", None)
    return OptionFile(name, first_comment(text), keys | own_keys)


def first_comment(text: str) -> str:
    """Return the first comment line of a file that is not `@package`."""
    comments = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    return next((line for line in comments if line and not line.startswith("@package")), "")


def _included(group: str, item: Any) -> dict[str, Key]:
    """Return the keys that an entry of a defaults list adds to an option of this group."""
    [(path, value)] = item.items() if isinstance(item, dict) else [(item, None)]
    if "@" in path:  # it is placed at a key
        return {path.partition("@")[2].partition(".")[0]: Key()}
    if value is not None or path == "_self_" or path.startswith("/") or not group:
        return {}
    return dict(read_option(group, path).keys)


def _keys(node: yaml.Node | None, content: Any, lines: list[str]) -> dict[str, Key]:
    """Return the keys of a mapping node, whose value is `content`."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    keys = dict[str, Key]()
    for key_node, value_node in node.value:
        key, place = key_node.value, key_node.end_mark
        if value_node.start_mark.line == place.line:
            place = value_node.end_mark  # of a value in the same line
        rest = lines[place.line][place.column :] if place.line < len(lines) else ""
        _, mark, comment = rest.partition("#")
        value = content.get(key)
        keys[str(key)] = Key(value, comment.strip() if mark else "", _keys(value_node, value, lines))
    return keys
