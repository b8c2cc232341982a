"""study.png: the mean of each contender with its interval, and the results with its seeds. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.sweeps.study.report import by_rank
from hydrant.training.plotting import Measured, draw_intervals


def draw_means(content: Mapping[str, Any], path: Path) -> None:
    """Draw the results of study.json, the best contender on top."""
    rows = [
        Measured(
            row["name"], [value for value in row["results"] if value is not None], row["low"], row["high"]
        )
        for row in by_rank(content)
        if row["mean"] is not None
    ]
    if rows:
        draw_intervals(rows, content["protocol"]["metric"], path)
