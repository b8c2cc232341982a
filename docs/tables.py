"""Write the tables of the docs that the definitions of records give:    python docs/tables.py"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydrant.extensions.editor.json_schema import JsonSchema, meanings, schemas
from hydrant.records import Summary

PAGES = Path("docs/reference/json.md"), Path("docs/reference/run-folder.md")
_BEGIN, _END = "<!-- generated -->", "<!-- end of generated -->"


def with_tables(text: str, page: Path) -> str:
    """Return a page of the docs with the tables that the definitions give now."""
    if page.name == "json.md":
        answers = [item for item in schemas().items() if "$schema" in item[1]]  # not the schemas of files
        sections = [f"## {name}\n\n{_section(schema)}" for name, schema in answers]
    else:
        rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings(Summary).items()]
        sections = ["\n".join(["| key | content |", "| --- | --- |", *rows])]
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    return "\n\n".join([before + _BEGIN, *sections, _END]) + after


def _section(schema: JsonSchema) -> str:
    rows = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _fields(schema, "")]
    return "\n".join([schema["description"], "", "| field | type | meaning |", "| --- | --- | --- |", *rows])


def _fields(schema: JsonSchema, prefix: str) -> Iterator[tuple[str, str, str]]:
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


def _kind(field: JsonSchema) -> str:
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
