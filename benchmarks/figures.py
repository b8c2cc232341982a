"""What a benchmark yields: measured figures with their goals, what failed, and profiles. And the table of figures."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.statistics import Interval

_GOALS = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}


@dataclass(frozen=True)
class Figure:
    """One row of a table.

    Args:
        what: what is measured.
        value: one number, or a median with its 95 % interval.
        unit: `us`, `x` (a ratio) ...; empty for a count.
        goal: `<= 5`, `>= 10` or `= 0` for the median, or None.
        note: what a reader has to know, such as whether final weights are equal.
        remainder: where the remaining cost comes from; shown if the goal is missed.
    """

    what: str
    value: Interval | float
    unit: str
    goal: str | None = None
    note: str = ""
    remainder: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal.

        >>> Figure("added", 4.0, "us", "<= 5").is_met, Figure("faster", 1.2, "x", ">= 1.5").is_met
        (True, False)
        """
        if self.goal is None:
            return None
        sign, limit = self.goal.split()
        return _GOALS[sign](self.median, float(limit))

    @property
    def median(self) -> float:
        return self.value.median if isinstance(self.value, Interval) else self.value

    def as_dict(self) -> dict[str, Any]:
        """Return the figure in plain types, for JSON."""
        value = self.value._asdict() if isinstance(self.value, Interval) else {"median": self.value}
        fields = {"what": self.what, **value, "unit": self.unit, "goal": self.goal, "is_met": self.is_met}
        return fields | {"note": self.note, "remainder": self.remainder if self.is_met is False else ""}


@dataclass(frozen=True)
class Failure:
    """Something that could not be measured, and why."""

    what: str
    error: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Profile:
    """Tables of the phases and kernels that take the most time."""

    what: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


Item = Figure | Failure | Profile


def table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of `Figure.as_dict()` rows, then the remainders of missed goals.

    >>> print(*table([Figure("added", Interval(4.0, 3.0, 5.0), "us", "<= 5").as_dict()]), sep="\\n")
    | what | median | 95 % interval | goal | |
    | --- | --- | --- | --- | --- |
    | added | 4 us | 3 to 5 | <= 5: met | |
    """
    lines = ["| what | median | 95 % interval | goal | |", "| --- | --- | --- | --- | --- |"]
    for row in figures:
        spread = f"{rounded(row['low'])} to {rounded(row['high'])}" if "low" in row else ""
        goal = f"{row['goal']}: {'met' if row['is_met'] else '**missed**'}" if row["goal"] else ""
        cells = [row["what"], f"{rounded(row['median'])} {row['unit']}".strip(), spread, goal, row["note"]]
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    lines += [f"\n*{row['what']}*: {row['remainder']}" for row in figures if row["remainder"]]
    return lines


def rounded(number: float) -> str:
    """Return a number with three significant digits.

    >>> rounded(0.01234), rounded(1234.5), rounded(2.0), rounded(-0.0)
    ('0.0123', '1,234', '2', '0')
    """
    return f"{number + 0.0:,.0f}" if abs(number) >= 1000 else f"{number + 0.0:.3g}"
