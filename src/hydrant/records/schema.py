"""JSON Schemas and tables of the docs, made from the definitions of records:    python -m hydrant.records.schema"""

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hydrant.records import answers, files

ERROR, STUDY = "error", "study_file"
PAGES = Path("docs/reference/json.md"), Path("docs/reference/run-folder.md")
_BEGIN, _END = "<!-- generated -->", "<!-- end of generated -->"
_MEANING = re.compile(r"^    (\w+): ((?:.|\n(?=     ))+)", re.MULTILINE)
_CLASSES = {**vars(files), **vars(answers)}

Schema = dict[str, Any]


def schemas() -> dict[str, Schema]:
    """Return the JSON Schema of the answer of each command, of an error, and of study.json."""
    by_name = {ERROR: _answer(answers.ErrorLine, {}), STUDY: _schema(files.StudyFile)}
    for kind in answers.ANSWERS:
        command = kind.__name__.lower()
        by_name[command] = _answer(kind, {"command": {"const": "train" if command == "sweep" else command}})
    return by_name


def _answer(kind: type, header: Mapping[str, Schema]) -> Schema:
    """Return the schema of an answer with what `terminal.console` puts before its fields."""
    schema, header = _schema(kind), {"version": {"const": 1}, **header}
    fields = {"properties": {**header, **schema["properties"]}, "required": [*header, *schema["required"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, **fields}


def _schema(kind: type) -> Schema:
    """Return the schema of a record, with each object written out where it is, and the meanings of its fields."""
    [top], parts = msgspec.json.schema_components([kind])

    def inline(schema: Any) -> Any:
        if isinstance(schema, list):
            return [inline(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" not in schema:
            return {key: inline(item) for key, item in schema.items()}
        name = schema["$ref"].rpartition("/")[2]
        part: Schema = {"required": [], **inline(parts[name])}
        written = parts[name]["properties"].items()  # a default is written too
        part["required"] = [key for key, value in written if key in part["required"] or "default" in value]
        part["description"] = " ".join(part["description"].partition("Attributes:")[0].split())
        for field, meaning in meanings(_CLASSES[name]).items():
            part["properties"][field]["description"] = meaning
        return part

    return inline(top)


def meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each field by the docstrings of a record and of those that it extends."""
    texts = [inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__)]
    return {name: " ".join(words.split()) for text in texts for name, words in _MEANING.findall(text)}


def with_tables(text: str, page: Path) -> str:
    """Return a page of the docs with the tables that the definitions give now."""
    if page.name == "json.md":
        sections = [f"## {name}\n\n{_section(schema)}" for name, schema in schemas().items() if name != STUDY]
    else:
        rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings(files.Summary).items()]
        sections = ["\n".join(["| key | content |", "| --- | --- |", *rows])]
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    return "\n\n".join([before + _BEGIN, *sections, _END]) + after


def _section(schema: Schema) -> str:
    rows = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _fields(schema, "")]
    return "\n".join([schema["description"], "", "| field | type | meaning |", "| --- | --- | --- |", *rows])


def _fields(schema: Schema, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of each field, also of the objects inside."""
    for name, field in schema.get("properties", {}).items():
        if name in ("version", "command") and not prefix:
            continue
        optional = "" if name in schema["required"] else ", optional"
        yield prefix + name, _kind(field) + optional, field.get("description", "")
        yield from _inside(field, prefix + name)


def _inside(schema: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of the objects that a field is, or that it holds as a list or a mapping."""
    if not isinstance(schema, Mapping):
        return
    for part in schema.get("anyOf", [schema]):
        yield from _fields(part, f"{path}.")
        yield from _inside(part.get("items"), f"{path}[]")
        yield from _inside(part.get("additionalProperties"), f"{path}.<name>")


def _kind(field: Schema) -> str:
    """Return the type of a field in words.

    >>> _kind({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'array of string or null'
    """
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_kind, field["anyOf"])))
    inner = field.get("items") or field.get("additionalProperties")
    return field.get("type", "any") + (f" of {_kind(inner)}" if inner else "")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), page), encoding="utf-8")
