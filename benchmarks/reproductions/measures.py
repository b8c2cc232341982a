"""What the reproductions measure, as functions of their runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.reproductions.finding import Finding, Heat, Panel, Row, groups, of_each_seed

TITLES = {"sgd": "SGD with L2", "adam": "Adam with L2", "adamw": "AdamW"}


def _of_part(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _best(rows: Sequence[Row], metric: str = "val/loss") -> Row:
    """Return the run with the lowest metric. A run that diverged has none."""
    return min(rows, key=lambda row: math.inf if row[metric] is None else row[metric])


def _decay(row: Row) -> float:
    """Return the weight decay of one update at the configured learning rate, in the unit of the paper."""
    return row["optimizer.weight_decay"] * (row["optimizer.lr"] if row["part"] == "adamw" else 1.0)


def _slope(rows: Sequence[Row]) -> float:
    """Return by how many decades the best weight decay rises for a decade of the learning rate."""
    best = {lr: _decay(_best(found)) for lr, found in groups(rows, "optimizer.lr").items()}
    return round(float(np.polyfit(np.log10(list(best)), np.log10(list(best.values())), 1)[0]), 6)


def separability(rows: Sequence[Row]) -> list[Finding]:
    """Slopes of the best weight decay over the learning rate, and the accuracy that AdamW gains over Adam."""
    ends = {"sgd": (-math.inf, -0.25), "adam": (-math.inf, -0.25), "adamw": (-0.25, 0.25)}
    what = "decades of the best decay for a decade of lr"
    slopes = [
        Finding(f"{TITLES[part]}: {what}", of_each_seed(_of_part(rows, part), _slope), *ends[part])
        for part in ends
    ]
    best = {
        part: of_each_seed(_of_part(rows, part), lambda found: _best(found)["val/accuracy"])
        for part in ("adam", "adamw")
    }
    gains = [ours - theirs for ours, theirs in zip(best["adamw"], best["adam"], strict=True)]
    return [*slopes, Finding("accuracy of AdamW less that of Adam, each at its best", gains, 0.0, math.inf)]


def separability_panels(rows: Sequence[Row]) -> list[Panel]:
    """The mean loss over both, for each optimizer."""
    return [
        Heat(
            TITLES[part],
            "weight decay, which lr multiplies" if part == "adamw" else "L2",
            "learning rate",
            {
                (lr, decay): fmean(math.nan if row["val/loss"] is None else row["val/loss"] for row in found)
                for (lr, decay), found in groups(
                    _of_part(rows, part), "optimizer.lr", "optimizer.weight_decay"
                ).items()
            },
        )
        for part in TITLES
    ]
