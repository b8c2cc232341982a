"""What the trials of a study are judged by: values of a run, read from what it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NUM_PARAMETERS = "num_parameters"


@dataclass(frozen=True)
class Objective:
    """A metric, and whether more of it is better."""

    metric: str
    mode: str  # "max" or "min"

    def value(self, summary: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> float | None:
        """The best that a run ever had, of speed and memory what its summary says; None where there is none.

        >>> rows = [{"num_updates": n, "val/loss": loss} for n, loss in enumerate([0.1, 0.5, 0.4])]
        >>> Objective("val/loss", "min").value({}, rows)  # the untrained model does not count
        0.4
        >>> Objective("num_parameters", "min").value({"num_parameters": 10}, [])
        10.0
        """
        section, _, name = self.metric.partition("/")
        if self.metric == NUM_PARAMETERS or section == "perf":
            found = [summary.get(self.metric) if not name else (summary.get(section) or {}).get(name)]
        else:
            found = [row.get(self.metric) for row in rows if row["num_updates"]]
        values = [float(value) for value in found if value is not None and math.isfinite(value)]
        return (max if self.mode == "max" else min)(values, default=None)
