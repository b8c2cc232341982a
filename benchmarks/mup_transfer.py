"""The best learning rates over widths, from the runs of `scripts/reproduce mup`.

The best rate lies between the tried ones: at the lowest point of the
parabola through the best one and its neighbours, over log(lr).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "examples" / "papers" / "reproductions" / "results" / "mup.json"
WIDTHS = (16, 32, 64, 128)

Losses = dict[int, dict[float, float]]
"""The mean loss over the seeds by width and learning rate."""


def load() -> dict[str, Losses]:
    """Return the losses of the sweeps by optimizer."""
    runs = json.loads(FILE.read_text(encoding="utf-8"))["runs"]
    return {
        optimizer: {
            width: {
                lr: fmean(loss for *key, _, loss in runs if key == [optimizer, width, lr])
                for lr in sorted({rate for name, _, rate, *_ in runs if name == optimizer})
            }
            for width in WIDTHS
        }
        for optimizer in dict.fromkeys(name for name, *_ in runs)
    }


def best_lr(losses: Mapping[float, float]) -> float | None:
    """Return the learning rate with the lowest loss, between the tried ones; None if it lies at an end of them.

    >>> round(best_lr({1.0: 2.0, 2.0: 1.0, 4.0: 2.0}), 3), best_lr({1.0: 1.0, 2.0: 2.0, 4.0: 3.0})
    (2.0, None)
    """
    rates = sorted(losses)
    best = min(range(len(rates)), key=lambda n: losses[rates[n]])
    if best in (0, len(rates) - 1):
        return None
    below, middle, above = (losses[rates[n]] for n in (best - 1, best, best + 1))
    shift = (below - above) / (below - 2 * middle + above) / 2
    return rates[best] * (rates[best + 1] / rates[best]) ** shift


def spread(by_width: Losses) -> float | None:
    """Return the factor between the largest and the smallest best lr of all widths; None if one is at an end."""
    best = [best_lr(losses) for losses in by_width.values()]
    inside = [lr for lr in best if lr is not None]
    return max(inside) / min(inside) if len(inside) == len(best) else None
