"""CSV holds no formula, whatever the names in a run folder are."""

import csv
import io

import pytest

from hydrant.files import on_disk
from hydrant.files.on_disk import as_csv


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-1+1", "@SUM(A1)", "\t=1", "=\x1b[2J", "\r=1"]
)
def test_a_formula_becomes_text(text: str) -> None:
    [[cell, after]] = csv.reader(io.StringIO(as_csv([[text, "after"]]), newline=""))
    assert cell.startswith("'")
    assert after == "after"
    assert "\x1b" not in cell


@pytest.mark.parametrize("value", [-0.5, "-0.5", "-1e-3", "+2", "-", "a=b", "", 'x,"y"', None])
def test_other_values_stay_the_same(value: object) -> None:
    [[cell]] = csv.reader(io.StringIO(as_csv([[value]]), newline=""))
    assert cell == ("" if value is None else str(value))


def test_a_text_in_many_rows_is_searched_for_secrets_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    monkeypatch.setattr(on_disk, "public", lambda text: searched.append(text) or text.upper())
    rows = [[n, name] for n in range(3) for name in ("cat", "dog")]
    assert as_csv(rows, end=" ") == "0,CAT 0,DOG 1,CAT 1,DOG 2,CAT 2,DOG "
    assert searched == ["cat", "dog"]
