"""Tables as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from hydrant.files.redaction import public

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Iterable[Sequence[Any]], end: str = "\r\n") -> str:
    """Return rows as CSV. A text that a spreadsheet would run as a formula gets a quote in front of it.

    >>> as_csv([["run", "loss"], ["=HYPERLINK(1)", -0.5], ["-1e-3", "-"]], end=" ")
    "run,loss '=HYPERLINK(1),-0.5 -1e-3,- "
    """
    text, cells = io.StringIO(), _Cells()
    writer = csv.writer(text, lineterminator=end)
    writer.writerows([cells[value] if isinstance(value, str) else value for value in row] for row in rows)
    return text.getvalue()


class _Cells(dict[str, str]):
    """The cells of texts. Each text is searched for secrets once: names of classes are in many rows."""

    def __missing__(self, text: str) -> str:
        is_formula = text.startswith(_FORMULA) and text != "-" and not is_number(text)
        self[text] = cell = public(f"'{text}" if is_formula else text)
        return cell


def is_number(text: str) -> bool:
    """Return whether a cell is a number. NaN is a word for none, and only Python reads one with `_`."""
    try:
        return not math.isnan(float(text)) and "_" not in text
    except ValueError:
        return False
