"""What is made from the schemas: that of `study`, and the fields of each answer in docs/reference/json.md."""

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hydrant.commands.answers import ERROR, schemas
from hydrant.sweeps import study

_PAGE = Path("docs/reference/json.md")
_STUDY = Path(__file__).parent / "study.json"
RECORD_SCHEMA = Path(study.__file__).parent / "study.schema.json"
_NOT_SHOWN = ("overrides", "results", "runs", "std", "beaten_by", "beaten_after")
"""What only study.json has of a contender."""
_OF_OTHERS = ("status", "num_updates", "total_updates", "metrics", "best", "error", "ended_by")
"""What the answer about a run, or about another sweep, has."""
_BEGIN, _END = "<!-- schemas: generated -->", "<!-- end of schemas -->"


def study_schema() -> str:
    """Return the schema of `study`: what `train` answers for a sweep, with its own result in place of a best run."""
    schema = schemas()["train"]
    schema["properties"] |= {"command": {"const": "study"}, "result": _study_result()}
    schema["properties"] = {
        key: field for key, field in schema["properties"].items() if key not in _OF_OTHERS
    }
    schema["required"] = [*schema["required"], *schema.pop("oneOf")[1]["required"]]
    words = {"title": "study", "description": "How a study ended: a sweep. Its study.json has everything."}
    return json.dumps(schema | words, indent=1) + "\n"


def _study_result() -> dict[str, Any]:
    """Return the schema of what a study has found: parts of its study.json."""
    record = json.loads(RECORD_SCHEMA.read_text(encoding="utf-8"))["properties"]
    pair = record["comparisons"]["items"]["properties"]
    text, number = {"type": "string"}, {"type": "number"}
    limits = record["protocol"]["properties"]["budget"]
    fields = {
        "verdict": _part(record["verdict"], without=("lead",)),
        "contenders": {
            "type": "array",
            "description": "The best mean first.",
            "items": _part(record["contenders"]["items"], without=_NOT_SHOWN),
        },
        "leads": {
            "type": "array",
            "description": "The leader minus each other contender, of the same seeds.",
            "items": _object(
                {"over": text} | {key: pair[key] for key in ("num_pairs", "mean", "low", "high")}
            ),
        },
        "beaten": {
            "type": "array",
            "description": "How much better than each beaten contender the one is that ruled it out.",
            "items": _object(
                {"name": text, "by": text} | {key: pair[key] for key in ("num_pairs", "mean", "low", "high")}
            ),
        },
        "levels": {
            **_object({"contenders": number, "leads": number, "beaten": number}),
            "description": "Of the intervals: of a pair, 1 - alpha / (contenders - 1), so that all pairs of the best "
            "contender hold together at 1 - alpha.",
        },
        "tuning": {
            **_object(
                {
                    "keys": {"type": "array", "items": text},
                    "metric": {**text, "description": "By which the tuning chose."},
                    "results": {
                        "type": "object",
                        "description": "Of each contender, by the tuned values in their order: at most its best 20. "
                        "null: no result.",
                        "additionalProperties": {
                            "type": "object",
                            "additionalProperties": {"type": ["number", "null"]},
                        },
                    },
                }
            ),
            "description": "What was tried. Without tuning, nothing.",
        },
        "num_samples": record["num_samples"],
        "protocol": record["protocol"]["properties"]["sentences"],
        "cost": _part(record["cost"], without=("num_starts", "as_of")),
        "budget": limits,
        "left": {**limits, "description": "What is left of each limit."},
        "not_tried": record["not_tried"],
        "report": {**text, "description": "The path of study.md."},
        "record": {**text, "description": "The path of study.json, which has everything."},
        "repeat": {
            **text,
            "description": "The command that repeats the study, or continues it after a stop.",
        },
        "continue": record["continue"],
    }
    return _object(fields, "What the study has found.")


def _part(schema: Mapping[str, Any], without: Collection[str]) -> dict[str, Any]:
    return _object({key: value for key, value in schema["properties"].items() if key not in without})


def _object(fields: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {**schema, "description": description} if description else schema


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
