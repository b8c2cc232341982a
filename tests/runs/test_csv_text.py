"""CSV holds no formula, whatever the names in a run folder are."""

from __future__ import annotations

import csv
import io

import pytest

from hydrant.runs.csv_text import as_csv


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
