"""What the reproductions measure, as functions of their runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.mup_transfer import best_lr
from benchmarks.reproductions.finding import Finding, Heat, Lines, Panel, Row, groups, of_each_seed

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


def _losses(rows: Sequence[Row]) -> dict[float, float]:
    return {row["optimizer.lr"]: row["val/loss"] for row in rows}


def transfer(rows: Sequence[Row]) -> list[Finding]:
    """How the best learning rate changes when the width doubles. At an end of the tried rates, it is that end."""
    found = list[Finding]()
    for part, of_part in groups(rows, "part").items():
        octaves = list[float]()
        for of_seed in groups(of_part, "seed").values():
            losses = [_losses(of_width) for of_width in groups(of_seed, "model.width").values()]
            best = [best_lr(one) or min(one, key=one.__getitem__) for one in losses]
            octaves += [math.log2(after / before) for before, after in itertools.pairwise(best)]
        what = f"`{part}`: octaves of the best lr when the width doubles"
        found.append(Finding(what, octaves, -0.5, 0.5, "doublings"))
    return found


def transfer_panels(rows: Sequence[Row]) -> list[Panel]:
    """The loss over the learning rate for each width."""
    return [
        Lines(
            f"{part} with muP",
            "learning rate",
            "val/loss",
            {
                f"width {width}": {
                    lr: [row["val/loss"] for row in of_lr]
                    for lr, of_lr in groups(of_width, "optimizer.lr").items()
                }
                for width, of_width in groups(of_part, "model.width").items()
            },
            log="x",
        )
        for part, of_part in groups(rows, "part").items()
    ]


def _schedules(rows: Sequence[Row]) -> dict[str, dict[int, list[float]]]:
    """Return the losses of the seeds by schedule and duration."""
    by_schedule = {
        "cosine": [row for row in rows if row["part"] == "cosine"],
        "WSD": [row for row in rows if row["part"] != "cosine"],
    }
    return {
        name: {
            int(duration): [row["val/loss"] for row in found]
            for duration, found in groups(of_schedule, "duration").items()
        }
        for name, of_schedule in by_schedule.items()
    }


def durations(rows: Sequence[Row]) -> list[Finding]:
    """The loss of WSD less that of a cosine of the same duration and seed."""
    losses = _schedules(rows)
    return [
        Finding(
            f"{duration} updates: val/loss of WSD less that of cosine",
            [ours - theirs for ours, theirs in zip(losses["WSD"][duration], cosine, strict=True)],
            -0.03,
            0.03,
        )
        for duration, cosine in losses["cosine"].items()
    ]


def durations_panels(rows: Sequence[Row]) -> list[Panel]:
    """The loss over the duration."""
    return [Lines("after the last update", "updates", "val/loss", _schedules(rows))]
