"""How a typed user compares runs. Pyrefly checks the types; the code is not run."""

from typing import Any, assert_type

import pandas as pd

import hydrant
from hydrant.extensions.compare import Comparison, compare, load_runs


def compare_runs(run: hydrant.Run) -> None:
    """Compare runs and read the tables."""
    assert_type(load_runs("multirun/lr_study"), pd.DataFrame)
    comparison = compare(run, "multirun/lr_study", by=["optimizer"], metric="val/loss", mode="min")
    assert_type(comparison, Comparison)
    assert_type(comparison.groups, pd.DataFrame)
    assert_type(comparison.winner, str | None)
    assert_type(comparison.to_dict(), dict[str, Any])
    compare(run, mode="most")  # pyrefly: ignore[bad-argument-type]
