"""JSON Schemas, made from the definitions of records."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from hydrant.records import answers, files

ERROR, STUDY = "error", "study_file"
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
