"""Parameters of tests that the default tests leave out."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*rows: Any) -> list[Any]:
    """Return parameters that only the slow tests try; a tuple is one value for each argument."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow) for row in rows
    ]
