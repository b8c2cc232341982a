"""The objectives of a study, read from the files of a run."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NUM_PARAMETERS = "num_parameters"


@dataclass(frozen=True)
class Objective:
    """A metric to maximize or minimize."""

    metric: str
    mode: str  # "max" or "min"

    def value(self, summary: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> float | None:
        """Return the best value that a run reached; None if it has no finite value.

        `perf/...` and `num_parameters` are read from the summary, all other metrics from the rows of metrics.jsonl.

        >>> rows = [{"num_updates": n, "val/loss": loss} for n, loss in enumerate([0.1, 0.5, 0.4])]
        >>> Objective("val/loss", "min").value({}, rows)  # without the untrained model
        0.4
        >>> Objective("num_parameters", "min").value({"num_parameters": 10}, [])
        10.0
        """
        section, _, name = self.metric.partition("/")
        if self.metric == NUM_PARAMETERS or section == "perf":
            candidates = [summary.get(self.metric) if not name else (summary.get(section) or {}).get(name)]
        else:
            candidates = [row.get(self.metric) for row in rows if row["num_updates"]]
        values = [float(value) for value in candidates if value is not None and math.isfinite(value)]
        return (max if self.mode == "max" else min)(values, default=None)
