"""Whatever is wrong with a file is one error that names it; its readers meet only the types that they expect."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct

from hydrant.errors import RecordError
from hydrant.files.read_file import MAX_DEPTH, read_json, read_yaml
from hydrant.records import Count


class Best(Struct):
    metric: str
    value: float | None


class Record(Struct):
    status: Literal["running", "finished"] = "running"
    num_updates: Count = 0
    best: Best | None = None
    options: dict[str, str | None] = {}
    names: list[str] = []


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))

WRONG_JSON: dict[str | bytes, str] = {
    b"\xff": "malformed",
    b"\x00\x00": "malformed",
    "": "truncated",
    "{": "truncated",
    "[]": "Expected `object`, got `array`",
    "[" * 100_000: "nested too deep",
    '{"x": ' + "[" * 60 + "]" * 60 + "}": f"nested more than {MAX_DEPTH} levels",
    '{"status": "lost"}': "Invalid enum value 'lost' - at `$.status`",
    '{"status": []}': "Expected `str`, got `array` - at `$.status`",
    '{"num_updates": true}': "Expected `int`, got `bool` - at `$.num_updates`",
    '{"num_updates": 1.0}': "Expected `int`, got `float`",
    '{"num_updates": {"_target_": "x"}}': "Expected `int`, got `object`",
    '{"num_updates": -1}': "Expected `int` >= 0",
    '{"num_updates": 1e999}': "Number out of range",
    '{"num_updates": ' + "9" * 5000 + "}": "out of range",
    '{"num_updates": NaN}': "malformed",
    '{"best": {"value": 1}}': "missing required field `metric` - at `$.best`",
    '{"best": {"metric": "m", "value": "x"}}': "Expected `float | null`, got `str` - at `$.best.value`",
    '{"options": [1]}': "Expected `object`, got `array` - at `$.options`",
    '{"options": {"a": 1}}': "Expected `str | null`, got `int` - at `$.options[...]`",
    '{"names": ["a", 2]}': "Expected `str`, got `int` - at `$.names[1]`",
    '{"x": "\\ud800"}': "truncated",
    '{"x": "\\u0000"}': "a text has a zero byte",
}
WRONG_YAML: dict[str | bytes, str] = {
    b"\xff": "line 1 is no text in UTF-8",
    "x: [1": "line 2: ",
    "x: '": "line 1: ",
    "[" * 60: f"nested more than {MAX_DEPTH} levels",
    "[" * 100_000: "nest",  # PyYAML 6.0.4 finds this itself: "exceeded maximum nesting depth"
    "- " * 100_000: f"nested more than {MAX_DEPTH} levels",
    "x: &x [*x]": "values, with those that aliases repeat",
    BOMB: "values, with those that aliases repeat",
    "x: !!binary aGk=": "a value is of the type bytes",
    "x: !!set {a}": "a value is of the type set",
    "x: !!timestamp 2024-01-01": "a value is of the type date",
    "x: !!int ''": "string index out of range",
    "x: !!timestamp then": "",
    "x: !!bool perhaps": "'perhaps'",
    "x: !!python/object/apply:os.getcwd []": "could not determine a constructor",
    "1: x": "Expected `str`",
    "x: " + str(16**20 - 1): "a number has 80 bits",
    "x: 0x" + "f" * 5000: "line 1: a number has 5,002 characters",
    "x: 1" + ":59" * 300_000: "line 1: a number has 900,001 characters",
    "x: !!int '1" + ":59" * 300_000 + "'": "line 1: a number has 900,001 characters",
    "names: text": "Expected `array`, got `str` - at `$.names`",
    "x" * (1 << 21): "it has 2,097,152 bytes",
}


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        *((read_json, text, reason) for text, reason in WRONG_JSON.items()),
        *((read_yaml, text, reason) for text, reason in WRONG_YAML.items()),
    ],
)
def test_damage_is_named(read: Callable[..., Any], text: str | bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError) as raised:
        read(file, Record, *["; remove it"] * (read is read_json))
    message = str(raised.value)
    assert message.startswith(f"{file} is damaged (")
    assert reason in message
    assert message.endswith("; remove it" if read is read_json else ")")
    assert len(message) < 300


def test_right_content_is_returned(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"best": null, "num_updates": 3, "more": {"x": [1, 0.5, null]}}')
    assert read_json(tmp_path / "a.json", dict[str, Any], fields=Record) == {
        "best": None, "num_updates": 3, "more": {"x": [1, 0.5, None]}
    }  # fmt: skip
    (tmp_path / "a.yaml").write_text("names: [a, 2024-01-01]\nlr: 1e-3\nx: &x {1: .inf}\ny: *x\n")
    assert read_yaml(tmp_path / "a.yaml", dict[str, Any], fields=Record) == {
        "names": ["a", "2024-01-01"], "lr": 0.001, "x": {1: float("inf")}, "y": {1: float("inf")}
    }  # fmt: skip
    assert read_json(tmp_path / "a.json", Record) == Record(num_updates=3)
    assert read_json(tmp_path / "missing", Record) is None
    assert read_json(tmp_path / "a.json" / "below", Record) is None


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe would wait for its writer; /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "zero", "loop", ".", "x" * 300, "x\0"):
        with pytest.raises(RecordError, match=r"damaged|cannot be read"):
            read_json(tmp_path / name, Record)
