"""Whatever is wrong with a file is one error that names it; its readers meet only the types that they expect."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

from hydrant.errors import RecordError
from hydrant.files.bounded_yaml import MAX_DEPTH
from hydrant.files.read_file import read_json, read_yaml


class Best(TypedDict):
    metric: str
    value: float | None


class Record(TypedDict, total=False):
    status: Literal["running", "finished"]
    num_updates: int
    best: Best | None
    options: dict[str, str | None]
    names: list[str]


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))

WRONG_JSON: dict[str | bytes, str] = {
    b"\xff": "line 1 is no text in UTF-8",
    b"\x00\x00": "Expecting value",
    "": "Expecting value",
    "{": "Expecting property name",
    "[]": "it needs a mapping",
    "[" * 100_000: "nested too deep",
    '{"x": ' + "[" * 60 + "]" * 60 + "}": f"nested more than {MAX_DEPTH} levels",
    '{"status": "lost"}': "status needs running or finished, not 'lost'",
    '{"status": []}': "status needs running or finished",
    '{"num_updates": true}': "num_updates needs a whole number, not true",
    '{"num_updates": 1.0}': "num_updates needs a whole number",
    '{"num_updates": {"_target_": "x"}}': "num_updates needs a whole number",
    '{"num_updates": ' + "9" * 5000 + "}": "a number has 5000 digits",
    '{"num_updates": NaN}': "NaN is no number in JSON",
    '{"best": {"value": 1}}': "it has no best.metric",
    '{"best": {"metric": "m", "value": "x"}}': "best.value needs a number, not 'x'",
    '{"options": [1]}': "options needs a mapping",
    '{"options": {"a": 1}}': "options.a needs a string, not 1",
    '{"names": ["a", 2]}': "names.1 needs a string, not 2",
    '{"x": "\\ud800"}': "surrogates not allowed",
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
    "x: !!int ''": "a value does not fit its tag",
    "x: !!timestamp then": "a value does not fit its tag",
    "x: !!bool perhaps": "a value does not fit its tag",
    "x: !!python/object/apply:os.getcwd []": "could not determine a constructor",
    "1: x": "a key needs a string, not 1",
    "x: " + str(16**20 - 1): "a number has 80 bits",
    "x: 0x" + "f" * 5000: "line 1: a number has 5,002 characters",
    "x: 1" + ":59" * 300_000: "line 1: a number has 900,001 characters",
    "x: !!int '1" + ":59" * 300_000 + "'": "line 1: a number has 900,001 characters",
    "names: text": "names needs a list of strings, not 'text'",
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
        read(file, Record, "; remove it")
    message = str(raised.value)
    assert message.startswith(f"{file} is damaged (")
    assert reason in message
    assert message.endswith("; remove it")
    assert len(message) < 300


def test_right_content_is_returned(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"best": null, "num_updates": 3, "more": {"x": [1, 0.5, null]}}')
    assert read_json(tmp_path / "a.json", Record) == {
        "best": None, "num_updates": 3, "more": {"x": [1, 0.5, None]}
    }  # fmt: skip
    (tmp_path / "a.yaml").write_text("names: [a, 2024-01-01]\nlr: 1e-3\nx: &x {1: .inf}\ny: *x\n")
    assert read_yaml(tmp_path / "a.yaml", Record) == {
        "names": ["a", "2024-01-01"], "lr": 0.001, "x": {1: float("inf")}, "y": {1: float("inf")}
    }  # fmt: skip
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
