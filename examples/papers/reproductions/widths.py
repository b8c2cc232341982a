"""What the reproductions of muP measure: the best learning rate over the width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from benchmarks.mup_transfer import best_lr
from examples.papers.reproductions.finding import Finding, Lines, Panel, Row, groups, of_each_seed

THEORY = {"adamw": -1.0, "muon": -0.5}
"""The octaves of the best learning rate for a doubling of the width under the standard parametrization."""
PAPERS = {"muon": "condition of Yang et al., 2023"}
"""Whose condition the rule of an optimizer follows, if not that of Yang et al., 2022."""
PARAMETRIZATIONS = {"mup": "with muP", "standard": "without muP"}


def _best_lrs(rows: Sequence[Row]) -> dict[int, float]:
    """Return the best learning rate by width. At an end of the tried rates, it is that end.

    >>> losses = {16: (3.0, 2.0, 3.0), 32: (2.0, 3.0, 4.0), 64: (2.0, 1.0, None)}  # the last run diverged
    >>> _best_lrs([{"model.width": width, "optimizer.lr": lr, "seed": 0, "val/loss": loss}
    ...     for width, of_width in losses.items() for lr, loss in zip((1.0, 2.0, 4.0), of_width)])
    {16: 2.0, 32: 1.0, 64: 2.0}
    """
    found: dict[int, float] = {}
    for width, of_width in groups(rows, "model.width").items():
        losses = {row["optimizer.lr"]: row["val/loss"] for row in of_width if row["val/loss"] is not None}
        found[width] = best_lr(losses) or min(losses, key=losses.__getitem__)
    return found


def transfer(rows: Sequence[Row]) -> list[Finding]:
    """How the best learning rate changes when the width doubles."""
    found = list[Finding]()
    for part, of_part in groups(rows, "part").items():
        octaves = list[float]()
        for of_seed in groups(of_part, "seed").values():
            best = _best_lrs(of_seed).values()
            octaves += [math.log2(after / before) for before, after in itertools.pairwise(best)]
        what = f"`{part}`: octaves of the best lr when the width doubles"
        found.append(Finding(what, octaves, -0.5, 0.5, "doublings", paper=PAPERS.get(part, "")))
    return found


def _widths(rows: Sequence[Row], title: str) -> Lines:
    """Return a panel with the loss over the learning rate for each width."""
    points = {
        f"width {width}": {
            lr: [row["val/loss"] for row in of_lr if row["val/loss"] is not None] or [math.nan]
            for lr, of_lr in groups(of_width, "optimizer.lr").items()
        }
        for width, of_width in groups(rows, "model.width").items()
    }
    return Lines(title, "learning rate", "val/loss", points, log="x")


def transfer_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The loss over the learning rate for each width."""
    return [_widths(of_part, f"{part} with muP") for part, of_part in groups(rows, "part").items()]


def _octaves(rows: Sequence[Row]) -> float:
    """Return by how many octaves the best learning rate rises when the width doubles: the slope of a line.

    >>> rates = {16: (8.0, 4.0), 32: (4.0, 2.0), 64: (2.0, 1.0)}
    >>> _octaves([{"model.width": width, "optimizer.lr": lr, "seed": 0, "val/loss": loss}
    ...     for width, of_width in rates.items() for loss, lr in enumerate(of_width)])
    -1.0
    """
    best = _best_lrs(rows)
    return round(float(np.polyfit(np.log2(list(best)), np.log2(list(best.values())), 1)[0]), 6)


def parametrizations(rows: Sequence[Row]) -> list[Finding]:
    """How the best learning rate changes when the width doubles, with muP and without."""
    found, parts = list[Finding](), groups(rows, "part")
    for optimizer, theory in THEORY.items():
        paper = PAPERS.get(optimizer, "")
        slopes = {name: of_each_seed(parts[f"{optimizer}_{name}"], _octaves) for name in PARAMETRIZATIONS}
        ranges = {"mup": (theory / 2, -theory / 2), "standard": (-math.inf, theory / 2)}
        found += [
            Finding(
                f"`{optimizer}` {PARAMETRIZATIONS[name]}: octaves of the best lr for a doubling of the width",
                values,
                *ranges[name],
                paper=paper,
            )
            for name, values in slopes.items()
        ]
        gains = [ours - other for ours, other in zip(slopes["mup"], slopes["standard"], strict=True)]
        what = f"`{optimizer}`: octaves with muP less those without"
        found.append(Finding(what, gains, 0.0, math.inf, paper=paper))
    return found


def parametrizations_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The loss over the learning rate for each width, with muP and without."""
    parts = groups(rows, "part")
    return [
        _widths(parts[f"{optimizer}_{name}"], f"{optimizer} {title}")
        for optimizer in THEORY
        for name, title in PARAMETRIZATIONS.items()
    ]
