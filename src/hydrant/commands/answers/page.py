"""What is made from the schemas: that of `study`, and the fields of each answer in docs/reference/json.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydrant.commands.answers import ERROR, schemas

_PAGE = Path("docs/reference/json.md")
_STUDY = Path(__file__).parent / "study.json"
_BEGIN, _END = "<!-- schemas: generated -->", "<!-- end of schemas -->"


def study_schema() -> str:
    """Return the schema of `study`: that of `train`, which answers for a sweep, with its own name."""
    schema = schemas()["train"]
    schema["properties"]["command"] = {"const": "study"}
    words = {"title": "study", "description": "How a study ended: a sweep. Its study.json has everything."}
    return json.dumps(schema | words, indent=1) + "\n"


def page(text: str) -> str:
    """Return the page about JSON with the fields that the schemas have now."""
    known = schemas()
    names = [ERROR, *(name for name in known if name != ERROR)]
    sections = [f"## {name}\n\n{_section(known[name])}" for name in names]
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    return "\n\n".join([before + _BEGIN, *sections, _END]) + after


def _section(schema: Mapping[str, Any]) -> str:
    rows = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _fields(schema, "")]
    return "\n".join([schema["description"], "", "| field | type | meaning |", "| --- | --- | --- |", *rows])


def _fields(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of each field, also of the objects inside."""
    required = schema.get("required", ())
    for name, field in {**schema.get("properties", {}), **schema.get("patternProperties", {})}.items():
        if name in ("version", "command") and not prefix:
            continue
        path = f"{prefix}<name with {name}>" if name in schema.get("patternProperties", {}) else prefix + name
        optional = "" if name in required or "patternProperties" in schema else ", optional"
        yield path, _kind(field) + optional, field.get("description", "")
        if field.get("type") in ("object", ["object", "null"]):
            yield from _fields(field, f"{path}.")
            yield from _fields_of_items(field.get("additionalProperties"), f"{path}.<name>")
        yield from _fields_of_items(field.get("items"), f"{path}[]")


def _fields_of_items(schema: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of what a list or a mapping holds, if these are objects or lists of objects."""
    if isinstance(schema, Mapping):
        yield from _fields(schema, f"{prefix}.")
        yield from _fields_of_items(schema.get("items"), f"{prefix}[]")


def _kind(field: Mapping[str, Any]) -> str:
    """Return the type of a field in words.

    >>> _kind({"type": ["number", "null"]}), _kind({"type": "array", "items": {"type": "string"}})
    ('number or null', 'array of string')
    """
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kinds = field.get("type", "any")
    kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if "items" in field:
        return f"{kind} of {_kind(field['items'])}"
    inner = field.get("additionalProperties")
    return f"{kind} of {_kind(inner)}" if isinstance(inner, Mapping) and inner else kind


if __name__ == "__main__":
    _STUDY.write_text(study_schema(), encoding="utf-8")
    _PAGE.write_text(page(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
