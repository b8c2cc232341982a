"""Numbers as texts: how many digits they need beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

_MAX_DIGITS = 15  # a float has no more


def digits_of(values: Iterable[float | None]) -> int:
    """Return how many significant digits tell values apart that are shown together: at least four.

    >>> digits_of([0.97, 0.96, None]), digits_of([0.9000001, 0.9000003]), digits_of([1234568.9, 1234569.1])
    (4, 8, 8)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    spread = max(known) - min(known) if known else 0.0
    if not 0.0 < spread < math.inf:
        return 4
    digits = 1 + math.ceil(math.log10(max(map(abs, known))) - math.log10(spread))
    return min(max(digits, 4), _MAX_DIGITS)


def number(value: Any, digits: int = 4) -> str:
    """Return a number with its significant digits; `-` for a missing one.

    >>> number(None), number(3), number(0.123456), number(123456.7), number(123456.78, 7), number(1306.2, 3)
    ('-', '3', '0.1235', '123457', '123456.8', '1306')
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if min(1e4, 10.0**digits) <= abs(value) < 1e15:
        return f"{value:.{max(digits - len(str(int(abs(value)))), 0)}f}"
    return f"{value:.{digits}g}"


def interval(low: float | None, high: float | None, digits: int = 4) -> str:
    return "-" if low is None or high is None else f"{number(low, digits)} to {number(high, digits)}"


def percent(ratio: float) -> str:
    """Return a ratio in whole percent, which is 0% or 100% only if nothing or all is meant.

    >>> percent(0.62), percent(0.0), percent(0.001), percent(0.9996), percent(1.0)
    ('62%', '0%', '<1%', '>99%', '100%')
    """
    text = f"{ratio:.0%}"
    return "<1%" if text == "0%" and ratio > 0 else ">99%" if text == "100%" and ratio < 1 else text
