"""Tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from hydrant.runs.console import public

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Iterable[Sequence[Any]], end: str = "\r\n") -> str:
    """Return rows as CSV. A text that a spreadsheet would compute gets a quote in front, because folders of others
    may hold any text.

    >>> as_csv([["run", "loss"], ["=HYPERLINK(1)", -0.5], ["-1e-3", "-"]], end=" ")
    "run,loss '=HYPERLINK(1),-0.5 -1e-3,- "
    """
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    is_formula = value.startswith(_FORMULA) and value != "-" and not _is_number(value)
    return public(f"'{value}" if is_formula else value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
