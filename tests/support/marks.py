"""Parameters of tests that the default tests leave out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow(*rows: Any) -> list[Any]:
    """Return parameters that only the slow tests try; a tuple is one value for each argument."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow) for row in rows
    ]


def slow_but(fast: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which the default tests try only those in `fast`."""
    return [pytest.param(case, marks=() if case in fast else pytest.mark.slow) for case in cases]
