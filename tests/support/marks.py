"""Parameters of tests that the default tests leave out, or that need a package."""

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import Any

import pytest


def slow(*rows: Any) -> list[Any]:
    """Return parameters that only the slow tests try; a tuple is one value for each argument."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow) for row in rows
    ]


def of_extension(*rows: Any) -> list[Any]:
    """Return parameters of tests that need an extension; a tuple is one value for each argument."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.extension)
        for row in rows
    ]


def slow_but(fast: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which the default tests try only those in `fast`."""
    return [pytest.param(case, marks=() if case in fast else pytest.mark.slow) for case in cases]


def needing(package: str, *values: Any) -> Any:
    """Return the values of a case that is skipped where a package is missing, which may have no wheel."""
    return pytest.param(*values, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"no {package}"))
