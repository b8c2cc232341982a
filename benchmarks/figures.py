"""What a benchmark found, and whether its goal is met."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.statistics import Interval

_GOALS = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}


@dataclass(frozen=True)
class Figure:
    """One row of a table.

    Args:
        what: what was measured.
        value: its median, with a 95 % interval where it was measured again and again.
        unit: `us`, `x` (a ratio) ...; empty for a count.
        goal: `<= 5`, `>= 10` or `= 0`, of the median; None where there is none.
        note: what a reader has to know of it, such as what its weights are compared with.
        remainder: what the remaining cost is and why; told where the goal is missed.
    """

    what: str
    value: Interval | float
    unit: str
    goal: str | None = None
    note: str = ""
    remainder: str = ""

    @property
    def is_met(self) -> bool | None:
        """None where there is no goal.

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

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        value = self.value._asdict() if isinstance(self.value, Interval) else {"median": self.value}
        fields = {"what": self.what, **value, "unit": self.unit, "goal": self.goal, "is_met": self.is_met}
        return fields | {"note": self.note, "remainder": self.remainder if self.is_met is False else ""}


def table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table of figures as `plain` gives them, and below it what the goals lack.

    >>> print(*table([Figure("added", Interval(4.0, 3.0, 5.0), "us", "<= 5").plain()]), sep="\\n")
    | what | median | 95 % interval | goal | |
    | --- | --- | --- | --- | --- |
    | added | 4 us | 3 to 5 | <= 5: met | |
    """
    lines = ["| what | median | 95 % interval | goal | |", "| --- | --- | --- | --- | --- |"]
    for row in figures:
        between = f"{_shown(row['low'])} to {_shown(row['high'])}" if "low" in row else ""
        goal = f"{row['goal']}: {'met' if row['is_met'] else '**missed**'}" if row["goal"] else ""
        cells = [row["what"], f"{_shown(row['median'])} {row['unit']}".strip(), between, goal, row["note"]]
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    lines += [f"\n*{row['what']}*: {row['remainder']}" for row in figures if row["remainder"]]
    return lines


def _shown(number: float) -> str:
    """With three significant digits.

    >>> _shown(0.01234), _shown(1234.5), _shown(2.0), _shown(-0.0)
    ('0.0123', '1,234', '2', '0')
    """
    return f"{number + 0.0:,.0f}" if abs(number) >= 1000 else f"{number + 0.0:.3g}"
