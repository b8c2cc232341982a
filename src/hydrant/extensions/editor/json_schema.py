"""`schema`: write JSON schemas by which editors complete and check the YAML of conf folders, and those of records.

The former check a subset of what a run checks.

Names of keys are checked where the target's arguments are known. Every value may also be an interpolation (`${...}`) or
a node with a `_target_`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hydrant.commands.registry import commands
from hydrant.config.command_line import PLURALS, Flags, writing_to
from hydrant.config.groups import LISTED_GROUPS, TrainConfig, content_of, group_options, option_path
from hydrant.config.instantiate import HYDRA_KEYS, type_hints_of
from hydrant.errors import ConfigError
from hydrant.files.on_disk import read_marked, replace_file
from hydrant.files.plain_values import is_torch_class, limits_of
from hydrant.files.read_file import MarkingLoader
from hydrant.records import Answer, ErrorLine
from hydrant.safety.targets import LIBRARIES, lies_under, locate
from hydrant.safety.trust import working_project
from hydrant.terminal.console import relative, tell


@dataclass(frozen=True)
class Key:
    """A key of a file: its default, the comment after it, and the keys of the mapping that it holds, if any."""

    default: Any = None
    comment: str = ""
    inner: Mapping[str, Key] = field(default_factory=dict["str", "Key"])


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
        ConfigError: it is no YAML.
    """
    return _read(option_path(group, name), group, name)


def _read(path: Path, group: str, name: str) -> OptionFile:
    text, content = read_marked(path), content_of(path)
    own_keys = _keys(yaml.compose(text, MarkingLoader), content, text.splitlines())
    keys = dict[str, Key]()
    for item in content.get("defaults", []):
        keys |= _included(group, item)
    own_keys.pop("defaults", None)
    for key, own in own_keys.items():  # a default of its own keeps the comment of what it includes
        keys[key] = replace(own, comment=own.comment or keys.get(key, own).comment)
    return OptionFile(name, first_comment(text), keys)


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


class Schema(Answer):
    """The JSON schemas for editors; those of answers and of study.json are in `records/`."""

    folder: str
    files: Sequence[str]


def main(arguments: Sequence[str]) -> int:
    """Write a schema for each group into a folder and return the exit status."""
    options, _ = Flags("schema", out=".schemas").split(arguments)
    folder = Path(options.out)
    written = json_schemas() | {f"records/{name}": schema for name, schema in schemas().items()}
    for name, content in written.items():
        file = folder / f"{name}.json"
        with writing_to("--out", file):
            replace_file(file, json.dumps(content, indent=1) + "\n")
    name, files = relative(folder.resolve()), [f"{name}.json" for name in written]
    text = f"{len(files)} schemas in {name}. In a file of conf/model, this line names its schema:"
    line = f"  # yaml-language-server: $schema=../../{options.out}/model.json"
    tell(f"{text}\n{line}", {"folder": name, "files": files})
    return 0


JsonSchema = dict[str, Any]

_MEANING = re.compile(r"^    (\w+): ((?:.|\n(?=     ))+)", re.MULTILINE)

CONFIG = "config"
"""The schema of train.yaml, and of the groups whose options set any key: experiment, debug, sweep."""

_GLOBAL_GROUPS = ("experiment", "debug", "sweep")

_ANYWHERE: JsonSchema = {
    "anyOf": [
        {"type": "string", "pattern": r"\$\{", "description": "an interpolation, as ${data.num_classes}"},
        {"type": "string", "const": "???", "description": "must be given"},
        {"type": "object", "required": ["_target_"], "description": "an object that a _target_ creates"},
    ]
}
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
_LIMITS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


def json_schemas() -> dict[str, JsonSchema]:
    """Return the schema of the files of each group, by the group's name, and `config`.

    The options are those of the user's and of Hydrant's conf folder.

    Raises:
        OSError, ConfigError: a file cannot be read.
    """
    known.cache_clear()  # the working folder, and whom the user trusts, may have changed
    groups = {
        group: [read_option(group, name) for name in names]
        for group, names in group_options().items()
        if group not in _GLOBAL_GROUPS
    }
    schemas = {group: _finished(f"an option of {group}", _option_schema(groups[group])) for group in groups}
    config = _finished("a config: train.yaml, an experiment, a sweep", _config_schema(groups))
    return schemas | {CONFIG: config}


def _finished(title: str, content: JsonSchema) -> JsonSchema:
    header = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, "type": "object"}
    return {**header, **content, "definitions": {"anywhere": _ANYWHERE}}


def _option_schema(options: Sequence[OptionFile]) -> JsonSchema:
    """Return the schema of the files of a group: the `_target_` decides which keys a file may have."""
    defaults: JsonSchema = {"type": "array", "description": "the options that this one begins with"}
    properties = {"defaults": defaults, **_merged(map(_properties, options))}
    branches: list[JsonSchema] = [{"if": {"not": {"required": ["_target_"]}}, "then": _only(properties)}]
    for target in sorted({option.target for option in options if option.target}):
        parts = [_properties(option) for option in options if option.target == target]
        if _takes_only_its_arguments(target):
            is_target = {"properties": {"_target_": {"const": target}}, "required": ["_target_"]}
            arguments = {"defaults": properties["defaults"], **_merged([*parts, *_of_target(target)])}
            branches.append({"if": is_target, "then": {"properties": arguments, **_only(arguments)}})
    return {"properties": properties, "allOf": branches}


def _config_schema(groups: Mapping[str, Sequence[OptionFile]]) -> JsonSchema:
    """Return the schema of a whole config, of which a file may set any part."""
    properties, conditions = _fields(TrainConfig, read_option("", "train").keys), list[JsonSchema]()
    for group, options in groups.items():
        if group in properties:
            properties[group], strict = _group_schema(options)
            open_ones = [option.name for option in options if not _takes_only_its_arguments(option.target)]
            is_closed = {"not": _chooses(group, open_ones)}
            conditions.append({"if": is_closed, "then": {"properties": {group: strict}}})
    properties["hooks"]["properties"] = {
        option.name: content | (strict if _takes_only_its_arguments(option.target) else {})
        for option in groups.get("hook", [])
        for content, strict in [_group_schema([option])]
    }
    properties["defaults"] = _defaults_schema(groups)
    properties["hydra"] = {"type": "object", "description": "settings of Hydra: the folders, sweeps"}
    return {"properties": properties, "additionalProperties": False, "allOf": conditions}


def _chooses(group: str, names: Sequence[str]) -> JsonSchema:
    """Return the schema of configs whose defaults list chooses one of these options."""
    choice: JsonSchema = {
        "propertyNames": {"pattern": rf"(^|[ /]){group}$"},
        "additionalProperties": {"enum": list(names)},
    }
    return {"properties": {"defaults": {"contains": {"type": "object", **choice}}}, "required": ["defaults"]}


def _fields(fields: Any, keys: Mapping[str, Key]) -> JsonSchema:
    """Return a schema for each field of a dataclass. Defaults and comments are those of the primary config."""
    properties: JsonSchema = {}
    for name, hint in typing.get_type_hints(fields, include_extras=True).items():
        key = keys.get(name, Key())
        content = _of_hint(hint)
        if is_dataclass(hint):
            inner = _fields(hint, key.inner)
            content = {"type": "object", "properties": inner, "additionalProperties": False}
        properties[name] = _described(content, key)
    return properties


def _group_schema(options: Sequence[OptionFile]) -> tuple[JsonSchema, JsonSchema]:
    """Return the schema of a group's keys in a config, whose option may be any, and one that allows no other keys."""
    of_targets = [part for option in options for part in _of_target(option.target)]
    known = _merged([*map(_properties, options), *of_targets])
    strict: JsonSchema = {"if": {"not": {"required": ["_target_"]}}, "then": _only(known)}
    return {"type": "object", "properties": known}, strict


def _defaults_schema(groups: Mapping[str, Sequence[OptionFile]]) -> JsonSchema:
    """Return the schema of a config's defaults list: the options of each group, with what they are."""
    patterns: JsonSchema = {r"^(override\s+)?/?hydra/": {}}
    for group, names in group_options().items():
        comments = {option.name: option.comment for option in groups.get(group, [])}
        options: list[JsonSchema] = [{"const": name, "description": comments.get(name, "")} for name in names]
        choice: JsonSchema = {"anyOf": [*options, {"type": "null"}, {"type": "string", "pattern": r"\$\{"}]}
        if group in (*LISTED_GROUPS, *PLURALS):
            choice["anyOf"].append({"type": "array", "items": {"anyOf": options}})
        if not group.startswith("hydra/"):
            patterns[rf"^(override\s+|optional\s+)?/?{group}(@.*)?$"] = choice
    entry: JsonSchema = {"type": "object", "patternProperties": patterns, "additionalProperties": False}
    items: JsonSchema = {"anyOf": [{"type": "string"}, entry]}
    return {"type": "array", "items": items, "description": "the chosen options"}


def _properties(option: OptionFile) -> JsonSchema:
    """Return a schema for each key in the file of an option."""
    return _key_schemas(option.keys, option.target)


def _key_schemas(keys: Mapping[str, Key], target: str | None) -> JsonSchema:
    hints = _hints(target)
    schemas = {name: _described(_of_key(key, hints.get(name, Any)), key) for name, key in keys.items()}
    return schemas | {name: _plain(hint) for name, hint in HYDRA_KEYS.items()}


def _of_key(key: Key, hint: Any) -> JsonSchema:
    target = key.inner["_target_"].default if "_target_" in key.inner else None
    if not key.inner:
        is_known = hint is not Any and (key.default is not None or type(None) in typing.get_args(hint))
        return _of_hint(hint) if is_known else {}
    properties = _key_schemas(key.inner, target if isinstance(target, str) else None)
    return {"type": ["object", "string", "null"], "properties": properties}


def _of_target(target: str | None) -> list[JsonSchema]:
    """Return a schema for each argument of a target that is known; arguments that no file has are among them."""
    callable_ = known(target)
    if callable_ is None:
        return []
    hints = _hints(target)
    return [{name: _of_hint(hints.get(name, Any)) for name in _parameters(callable_)}]


def _takes_only_its_arguments(target: str | None) -> bool:
    """Whether a target is known and refuses arguments that it does not name."""
    callable_ = known(target)
    kinds = [] if callable_ is None else [p.kind for p in _parameters(callable_).values()]
    return callable_ is not None and bool(kinds) and inspect.Parameter.VAR_KEYWORD not in kinds


def documented(owner: Any, name: str) -> str:
    """Return the first sentence that the docstring of a function or a class has about an argument, or ""."""
    end = r"(?=\.?\s*\n *[\w, ]+(?: \(.*?\))?: |\.\s| \(default|\n\n|\Z)"
    about = rf"^\s*(?:\w+, )*{re.escape(name)}(?:, \w+)*(?: \([^\n]*?\))?: (.+?){end}"
    found = re.search(about, inspect.getdoc(owner) or "", re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


@cache
def known(target: str | None) -> Any:
    """Return the object of a target that a config may call anyway; None for others, which are not imported."""
    if target is None:
        return None
    project = working_project()
    try:
        if project.named_by([target]):
            project.check_origin(target, "")
        elif not lies_under(target, ("hydrant", *LIBRARIES)) or "._" in target:
            return None
        return locate(target, "")
    except ConfigError:  # a package that is not installed, or code that cannot be imported
        return None


def _parameters(callable_: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(callable_).parameters
    except ValueError:  # a builtin without a signature
        return {}


def _hints(target: str | None) -> Mapping[str, Any]:
    callable_ = known(target)
    return {} if callable_ is None else type_hints_of(callable_)


def _of_hint(hint: Any) -> JsonSchema:
    """Return the schema of the values that a type hint allows; an empty schema accepts everything."""
    plain = _plain(hint)
    return {"anyOf": [plain, {"$ref": "#/definitions/anywhere"}]} if plain else {}


def _plain(hint: Any) -> JsonSchema:
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _TYPES:
        return {"type": _TYPES[origin]}
    if origin is typing.Annotated:
        return {**_plain(arguments[0]), **{_LIMITS[name]: limit for name, limit in limits_of(hint).items()}}
    if origin in (typing.Union, types.UnionType):
        parts = [_plain(argument) for argument in arguments if not is_torch_class(argument)]
        return {"anyOf": parts} if all(parts) else {}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (tuple, list, Sequence):
        is_uniform = origin is not tuple or Ellipsis in arguments
        return {"type": "array", **({"items": _of_hint(arguments[0])} if arguments and is_uniform else {})}
    return {"type": "object"} if origin in (dict, Mapping) else {}


def _described(content: JsonSchema, key: Key) -> JsonSchema:
    described = {**content, **({"description": key.comment} if key.comment else {})}
    is_plain = isinstance(key.default, (str, int, float, list)) and "${" not in str(key.default)
    return {**described, "default": key.default} if is_plain and key.default != "???" else described


def _merged(parts: Iterable[JsonSchema]) -> JsonSchema:
    """Return the schemas by key of several mappings; a value may be what any of them accepts."""
    by_name = dict[str, list[JsonSchema]]()
    for part in parts:
        for name, content in part.items():
            by_name.setdefault(name, []).append(content)
    return {name: _either(schemas) for name, schemas in by_name.items()}


def _either(schemas: Sequence[JsonSchema]) -> JsonSchema:
    """Return the schema of what any of these accept, with the first description, and the default if all have one."""
    kinds, notes = list[JsonSchema](), dict[str, list[Any]]()
    for content in schemas:
        kind = {name: value for name, value in content.items() if name not in ("description", "default")}
        kinds += [kind] if kind not in kinds else []
        for name in content.keys() - kind.keys():
            notes.setdefault(name, []).append(content[name])
    if {} in kinds and not any("properties" in kind for kind in kinds):  # properties help to complete
        kinds = [{}]
    either = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if any(default != notes["default"][0] for default in notes.get("default", [])):
        del notes["default"]
    return {**either, **{name: notes[name][0] for name in ("description", "default") if name in notes}}


def _only(properties: Mapping[str, Any]) -> JsonSchema:
    return {"propertyNames": {"enum": sorted(properties)}}


def schemas() -> dict[str, JsonSchema]:
    """Return the JSON Schema of an error, and then of the answers of all commands, by the names of their classes."""
    kinds = [(kind, command.name) for command in commands().values() for kind in command.records]
    answers = {kind.__name__.lower(): schema_of(kind, name) for kind, name in kinds}
    return {"error": schema_of(ErrorLine), **dict(sorted(answers.items()))}


def schema_of(kind: type, command: str = "") -> JsonSchema:
    """Return the schema of a record; of an answer with what `terminal.console` puts before its fields.

    Args:
        command: whose answer it is; "" for an error.
    """
    schema = _written_out(kind)
    if not issubclass(kind, Answer):
        return schema
    header: JsonSchema = {"version": {"const": 1}, **({"command": {"const": command}} if command else {})}
    fields = {"properties": {**header, **schema["properties"]}, "required": [*header, *schema["required"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, **fields}


def _written_out(kind: type) -> JsonSchema:
    """Return the schema of a record, with each object written out where it is, and the meanings of its fields."""
    [top], parts = msgspec.json.schema_components([kind])
    classes = {
        name: value
        for of in reversed(kind.__mro__)
        for name, value in vars(sys.modules[of.__module__]).items()
    }

    def inline(schema: Any) -> Any:
        if isinstance(schema, list):
            return [inline(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" not in schema:
            return {key: inline(item) for key, item in schema.items()}
        name = schema["$ref"].rpartition("/")[2]
        part: JsonSchema = {"required": [], **inline(parts[name])}
        written = parts[name]["properties"].items()  # a default is written too
        part["required"] = [key for key, value in written if key in part["required"] or "default" in value]
        part["description"] = " ".join(part["description"].partition("Attributes:")[0].split())
        for key, meaning in meanings(classes[name]).items():
            part["properties"][key]["description"] = meaning
        return part

    return inline(top)


def meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each field by the docstrings of a record and of those that it extends."""
    texts = [inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__)]
    return {name: " ".join(words.split()) for text in texts for name, words in _MEANING.findall(text)}
