"""What the reproductions of AdamW measure: the best pairs of a learning rate and a weight decay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from examples.papers.reproductions.finding import Finding, Heat, Lines, Panel, Row, groups, of_each_seed

TITLES = {"sgd": "SGD with L2", "adam": "Adam with L2", "adamw": "AdamW"}
TARGETS = {"torch.optim.Adam": "Adam with L2", "torch.optim.AdamW": "AdamW"}
TUNING_SEED = 10
"""The seed with which a study tunes; all others are of its test."""


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
    parts = groups(rows, "part")
    slopes = [
        Finding(f"{TITLES[part]}: {what}", of_each_seed(parts[part], _slope), *ends[part]) for part in ends
    ]
    best = {
        part: of_each_seed(parts[part], lambda found: _best(found)["val/accuracy"])
        for part in ("adam", "adamw")
    }
    gains = [ours - theirs for ours, theirs in zip(best["adamw"], best["adam"], strict=True)]
    return [*slopes, Finding("accuracy of AdamW less that of Adam, each at its best", gains, 0.0, math.inf)]


def separability_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The mean loss over both, for each optimizer."""
    parts = groups(rows, "part")
    return [
        Heat(
            TITLES[part],
            "weight decay, which lr multiplies" if part == "adamw" else "L2",
            "learning rate",
            {
                (lr, decay): fmean(math.nan if row["val/loss"] is None else row["val/loss"] for row in found)
                for (lr, decay), found in groups(
                    parts[part], "optimizer.lr", "optimizer.weight_decay"
                ).items()
            },
        )
        for part in TITLES
    ]


def _tested(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Return the accuracies with the seeds of the study's test by contender."""
    tested = groups([row for row in rows if row["seed"] != TUNING_SEED], "optimizer._target_")
    return {
        title: {row["seed"]: row["val/accuracy"] for row in tested[target]}
        for target, title in TARGETS.items()
    }


def study(rows: Sequence[Row]) -> list[Finding]:
    """The accuracy that AdamW gains over Adam with seeds that tuned neither."""
    adam, adamw = _tested(rows).values()
    gains = [adamw[seed] - adam[seed] for seed in adam.keys() & adamw.keys()]
    return [Finding("accuracy of AdamW less that of Adam with L2", gains, 0.0, math.inf, has_looks=True)]


def study_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The accuracy of each seed of the test."""
    points = {
        title: {seed: [accuracy] for seed, accuracy in of_seeds.items()}
        for title, of_seeds in _tested(rows).items()
    }
    return [Lines("each at its best of 45 pairs", "seed, none of the tuning", "accuracy", points)]
