"""The table of best learning rates over widths in docs/guides/language-models.md:    python -m benchmarks.mup_transfer

Its runs are those of `scripts/reproduce mup`. The best rate lies between the tried ones: at the lowest point of the
parabola through the best one and its neighbours, over log(lr).
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.document import place

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "examples" / "papers" / "reproductions" / "results" / "mup.json"
PAGE = ROOT / "docs" / "guides" / "language-models.md"
WIDTHS, SEEDS = (16, 32, 64, 128), (0, 1)

Losses = dict[int, dict[float, float]]
"""The mean loss over the seeds by width and learning rate."""

_TABLE = re.compile(r"(?<=\n\n)\| optimizer \| width \|.*?\n\n.*?\n\n", re.DOTALL)


def load() -> tuple[dict[str, Any], dict[str, Losses]]:
    """Return where the sweeps ran, and their losses by optimizer."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    runs = content["runs"]
    losses = {
        optimizer: {
            width: {
                lr: fmean(loss for *key, _, loss in runs if key == [optimizer, width, lr])
                for lr in sorted({rate for name, _, rate, *_ in runs if name == optimizer})
            }
            for width in WIDTHS
        }
        for optimizer in dict.fromkeys(name for name, *_ in runs)
    }
    return content["measured"], losses


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


def table() -> str:
    """Return the table and the sentence below it."""
    measured, found = load()
    lines = list[str]()
    sentences = list[str]()
    for optimizer, by_width in found.items():
        rates = list(by_width[WIDTHS[0]])
        if not lines:
            lines = ["| optimizer | width | loss at each lr | best lr |", "| --- | --- | --- | --- |"]
        for width, losses in by_width.items():
            best = best_lr(losses)
            shown = ", ".join(f"{lr:g}: {losses[lr]:.3f}" for lr in rates)
            lines.append(
                f"| `{optimizer}` | {width} | {shown} | {'at an end' if best is None else f'{best:.2g}'} |"
            )
        sentences.append(_sentence(optimizer, by_width))
    where = f"The mean of {len(SEEDS)} seeds after 150 updates; measured {place(measured)}."
    below = textwrap.fill(" ".join([*sentences, where]), 120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + f"\n\n{below}\n\n"


def spread(by_width: Losses) -> float | None:
    """Return the factor between the largest and the smallest best lr of all widths; None if one is at an end."""
    best = [best_lr(losses) for losses in by_width.values()]
    inside = [lr for lr in best if lr is not None]
    return max(inside) / min(inside) if len(inside) == len(best) else None


def _sentence(optimizer: str, by_width: Losses) -> str:
    factor = spread(by_width)
    if factor is None:
        return f"For `{optimizer}`, the best learning rate of a width is at an end of the tried ones."
    word = "within" if factor <= math.sqrt(2) else "not within"
    return f"For `{optimizer}`, the best learning rates differ by a factor of {factor:.2f}, {word} sqrt(2)."


def page() -> str:
    """Return the page with the table."""
    return _TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
