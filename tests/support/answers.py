"""Check each answer and each error that a test gets in JSON against the schema of its command."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NoReturn

import pytest

from hydrant.commands.registry import commands
from hydrant.terminal import console


@pytest.fixture(autouse=True, scope="session")
def _answers_follow_their_schemas() -> Iterator[None]:
    make_line = console.json_line

    def checked(content: Mapping[str, Any]) -> str:
        line = make_line(content)
        check(line)
        return line

    console.json_line = checked
    yield
    console.json_line = make_line


def check(line: str) -> dict[str, Any]:
    """Check an answer or an error against its schema, where `hydrant schema` is installed, and return it."""
    content = json.loads(line, parse_constant=refuse)
    line.encode("ascii")
    command = content.get("command", "error")
    if "schema" in commands():
        _validator("sweep" if command == "train" and "states" in content else command).validate(content)
    return content


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


@cache
def _validator(name: str) -> Any:
    import jsonschema

    from hydrant.extensions.editor.json_schema import schemas

    schema = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
