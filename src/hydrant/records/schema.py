"""JSON Schemas, made from the definitions of records."""

import inspect
import re
import sys
from typing import Any

import msgspec

from hydrant.records.answers import Answer

_MEANING = re.compile(r"^    (\w+): ((?:.|\n(?=     ))+)", re.MULTILINE)

Schema = dict[str, Any]


def schema_of(kind: type, command: str = "") -> Schema:
    """Return the schema of a record; of an answer with what `terminal.console` puts before its fields.

    Args:
        command: whose answer it is; "" for an error.
    """
    schema = _written_out(kind)
    if not issubclass(kind, Answer):
        return schema
    header: Schema = {"version": {"const": 1}, **({"command": {"const": command}} if command else {})}
    fields = {"properties": {**header, **schema["properties"]}, "required": [*header, *schema["required"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, **fields}


def _written_out(kind: type) -> Schema:
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
        part: Schema = {"required": [], **inline(parts[name])}
        written = parts[name]["properties"].items()  # a default is written too
        part["required"] = [key for key, value in written if key in part["required"] or "default" in value]
        part["description"] = " ".join(part["description"].partition("Attributes:")[0].split())
        for field, meaning in meanings(classes[name]).items():
            part["properties"][field]["description"] = meaning
        return part

    return inline(top)


def meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each field by the docstrings of a record and of those that it extends."""
    texts = [inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__)]
    return {name: " ".join(words.split()) for text in texts for name, words in _MEANING.findall(text)}
