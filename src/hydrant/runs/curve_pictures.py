"""The picture of the curves of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.training.plotting import Curve, draw_curves

Rows = Sequence[Mapping[str, Any]]


def draw_run(rows: Rows, metric: str | None, path: Path) -> None:
    """Draw the losses, a metric, the learning rates and the norms of the gradients, as far as the rows have them."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    titles = {
        "loss": [key for key in ("train/loss", "val/loss") if key in keys],
        metric or "": [metric] if metric in keys and metric != "val/loss" else [],
        "learning rate": [key for key in keys if re.match(r"optim/(\w+/)?lr(/|$)", key)],
        "norm of the gradients": [key for key in keys if re.match(r"optim/(\w+/)?grad_norm(/|$)", key)],
    }
    panels = {
        title: {key if len(of_title) > 1 else "": curve(rows, key) for key in of_title}
        for title, of_title in titles.items()
        if of_title
    }
    if panels:
        draw_curves(panels, path, columns=2)


def curve(rows: Rows, key: str) -> Curve:
    """Return the updates and the values of a metric; a value that was not finite is NaN."""
    points = [(row["num_updates"], row[key]) for row in rows if key in row]
    return [x for x, _ in points], [math.nan if y is None else y for _, y in points]
