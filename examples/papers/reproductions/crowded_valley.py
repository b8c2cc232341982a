"""What the league of optimizers says about Schmidt et al., 2021."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from examples.league import results as league
from examples.papers.reproductions.finding import Finding, Row, groups


def crowded_valley(rows: Sequence[Row]) -> list[Finding]:
    """The loss of the newer optimizer that is nearest to being better than AdamW everywhere, on its worst problem; and
    that of the optimizer nearest to being the best everywhere.
    """
    losses = {
        key: [row["val/loss"] for row in found] for key, found in groups(rows, "part", "optimizer").items()
    }
    problems, optimizers = (dict.fromkeys(key[n] for key in losses) for n in (0, 1))
    others = {o: [other for other in optimizers if other != o] for o in optimizers}
    newer = {o: ["adamw"] for o in optimizers if o not in ("sgd", "adamw", "nadam")}
    found = list[Finding]()
    for rivals, better in ((newer, "better than AdamW"), (others, "best")):
        worst = {
            optimizer: max(
                (
                    (
                        [
                            a / b
                            for a, b in zip(
                                losses[problem, optimizer], min(of_rivals, key=fmean), strict=True
                            )
                        ],
                        problem,
                    )
                    for problem in problems
                    for of_rivals in [[losses[problem, rival] for rival in rivals[optimizer]]]
                ),
                key=lambda entry: fmean(entry[0]),
            )
            for optimizer in rivals
        }
        optimizer = min(worst, key=lambda one: fmean(worst[one][0]))
        ratios, problem = worst[optimizer]
        beside = "the best other one" if rivals is others else "AdamW"
        what = f"`{optimizer}`, nearest to {better} on all problems: its loss over that of {beside} on `{problem}`"
        found.append(Finding(what, ratios, 1.0, math.inf))
    return found


def league_content() -> dict[str, Any]:
    """Return the runs of the league with fresh seeds in the form of a result."""
    measured, sweeps = league.load()
    runs = [
        [name, row.optimizer, row.seed, row.loss] for name, found in sweeps.items() for row in found["fresh"]
    ]
    columns = ["part", "optimizer", "seed", "val/loss"]
    tuning = sum(len(found["tuning"]) for found in sweeps.values())
    return {
        "measured": measured,
        "processor_seconds": None,
        "num_tuning": tuning,
        "columns": columns,
        "runs": runs,
    }
