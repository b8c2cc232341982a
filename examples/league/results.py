"""The results of the league: collected from its sweeps, kept in results.json, and evaluated."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.league.sweeps import MODELS, Model, Row, best_rates, read
from hydrant.extensions.compare.statistics import (
    Basin,
    Difference,
    Estimate,
    Spread,
    estimate,
    find_basin,
    holm,
    paired,
    spread,
)

FILE = Path(__file__).with_name("results.json")
BASELINE = "adamw"
TOLERANCE = 0.1
"""A learning rate is in the basin if its loss is at most this share above that of the best one."""


@dataclass(frozen=True)
class Standing:
    """An optimizer on a model.

    Args:
        lr: its best learning rate in the tuning.
        is_at_end: whether that is the smallest or largest one that was tried.
        losses: of the fresh seeds, in their order.
        loss: their mean.
        difference: from AdamW, seed by seed; None for AdamW.
        basin: of the tuning.
    """

    optimizer: str
    lr: float
    is_at_end: bool
    losses: Sequence[float]
    loss: Estimate
    difference: Difference | None
    p_holm: float | None
    basin: Basin | None


def collect(folder: Path, measured: dict[str, Any]) -> None:
    """Write results.json from the sweeps in a folder. A failed run has the loss null."""
    sweeps = {
        model.name: {
            "tuning": _runs(folder / f"league_{model.name}", model.tuning_seeds),
            "fresh": _runs(folder / f"league_{model.name}_fresh", model.fresh_seeds),
        }
        for model in MODELS
    }
    rows = [
        f'    "{name}": {{\n'
        + ",\n".join(
            f'      "{phase}": [\n' + ",\n".join(f"        {json.dumps(row)}" for row in found) + "\n      ]"
            for phase, found in phases.items()
        )
        + "\n    }"
        for name, phases in sweeps.items()
    ]
    head = json.dumps({"measured": measured}, indent=2).removesuffix("\n}")
    FILE.write_text(f'{head},\n  "sweeps": {{\n' + ",\n".join(rows) + "\n  }\n}\n", encoding="utf-8")


def _runs(folder: Path, seeds: Sequence[int]) -> list[list[Any]]:
    return sorted(_plain(row) for row in read(folder) if row.seed in seeds)


def _plain(row: Row) -> list[Any]:
    return [row.optimizer, row.lr, row.seed, None if math.isinf(row.loss) else round(row.loss, 6)]


def load() -> tuple[dict[str, Any], dict[str, dict[str, list[Row]]]]:
    """Return where the league ran, and its runs by model and phase."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    sweeps = {
        name: {
            phase: [Row(o, lr, seed, math.inf if loss is None else loss) for o, lr, seed, loss in rows]
            for phase, rows in phases.items()
        }
        for name, phases in content["sweeps"].items()
    }
    return content["measured"], sweeps


def mean_losses(rows: Sequence[Row], optimizer: str) -> dict[float, float]:
    """Return the mean loss of an optimizer by its learning rate, in ascending order; infinite if a run failed."""
    rates = sorted({row.lr for row in rows if row.optimizer == optimizer})
    by_rate = {lr: [row.loss for row in rows if (row.optimizer, row.lr) == (optimizer, lr)] for lr in rates}
    return {lr: sum(losses) / len(losses) for lr, losses in by_rate.items()}


def standings(tuning: Sequence[Row], fresh: Sequence[Row]) -> list[Standing]:
    """Return the optimizers on a model, the best first."""
    best = best_rates(tuning)
    losses = {o: [r.loss for r in sorted(fresh, key=lambda r: r.seed) if r.optimizer == o] for o in best}
    differences = {o: paired(losses[o], losses[BASELINE]) for o in best if o != BASELINE}
    corrected = dict(zip(differences, holm([d.p or 0.0 for d in differences.values()]), strict=True))
    found = [
        _standing(o, best[o], mean_losses(tuning, o), losses[o], differences.get(o), corrected.get(o))
        for o in best
    ]
    return sorted(found, key=lambda standing: standing.loss.mean or math.inf)


def _standing(
    optimizer: str,
    lr: float,
    by_rate: dict[float, float],
    losses: list[float],
    difference: Difference | None,
    p_holm: float | None,
) -> Standing:
    tried = [None if math.isinf(loss) else loss for loss in by_rate.values()]
    basin = find_basin(list(by_rate), tried, TOLERANCE * by_rate[lr], "min")
    is_at_end = lr in (min(by_rate), max(by_rate))
    return Standing(optimizer, lr, is_at_end, losses, estimate(losses), difference, p_holm, basin)


def noise(found: Sequence[Standing]) -> Spread:
    """Return the standard deviation over the fresh seeds, pooled over the optimizers."""
    return spread([standing.losses for standing in found])


def model_of(name: str) -> Model:
    return next(model for model in MODELS if model.name == name)
