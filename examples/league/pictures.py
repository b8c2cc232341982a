"""The pictures of the league: the loss over the learning rates, and the loss of each optimizer with fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from examples.league.results import Standing, mean_losses, model_of
from examples.league.sweeps import Row

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
RATES, LOSSES = "league-rates.png", "league-losses.png"
_WORST = 10.0
"""The colour of a loss that is this many times the lowest one, or more."""


def draw(tuning: Mapping[str, Sequence[Row]], tables: Mapping[str, Sequence[Standing]]) -> None:
    """Write both pictures."""
    figure, panels = _panels(len(tables))
    for panel, (name, rows) in zip(panels, tuning.items(), strict=True):
        _draw_rates(panel, rows, [standing.optimizer for standing in tables[name]])
        panel.set_title(model_of(name).title, fontsize="medium")
    bar = figure.colorbar(panels[0].images[0], ax=panels, shrink=0.5, extend="max")
    ticks = [1.0, 1.5, 2.0, 3.0, 5.0, _WORST]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
    bar.minorticks_off()
    bar.set_label("loss, in multiples of the lowest one")
    figure.savefig(IMAGES / RATES, dpi=90)
    figure, panels = _panels(len(tables))
    for panel, (name, table) in zip(panels, tables.items(), strict=True):
        _draw_losses(panel, table)
        panel.set_title(model_of(name).title, fontsize="medium")
    figure.savefig(IMAGES / LOSSES, dpi=90)


def _panels(num: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(10, 4 * math.ceil(num / 2)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(math.ceil(num / 2), 2, squeeze=False).flat)


def _draw_rates(panel: Any, rows: Sequence[Row], optimizers: Sequence[str]) -> None:
    """Draw a field for each optimizer and learning rate; grey where a run failed. A dot marks the best rate."""
    table = [list(mean_losses(rows, optimizer).values()) for optimizer in optimizers]
    rates = list(mean_losses(rows, optimizers[0]))
    ratios = np.asarray(table) / np.min(table)
    panel.imshow(np.ma.masked_invalid(ratios), norm=LogNorm(1.0, _WORST), cmap="viridis_r", aspect="auto")
    panel.set_facecolor("lightgrey")
    panel.scatter(ratios.argmin(axis=1), range(len(optimizers)), color="white", edgecolor="black", s=30)
    panel.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates], fontsize="small")
    panel.set_yticks(range(len(optimizers)), optimizers, fontsize="small")
    panel.set_xlabel("learning rate", fontsize="small")


def _draw_losses(panel: Any, table: Sequence[Standing]) -> None:
    """Draw the loss of each seed as a dot, and the mean with its interval."""
    for position, standing in enumerate(table):
        color = "tab:orange" if standing.difference is None else "tab:blue"
        panel.scatter(standing.losses, [position] * len(standing.losses), color=color, alpha=0.4, s=12)
        if standing.loss.low is not None:
            panel.plot([standing.loss.low, standing.loss.high], [position] * 2, color=color, linewidth=2)
        panel.scatter([standing.loss.mean], [position], color=color, marker="|", s=120)
    panel.set_yticks(range(len(table)), [standing.optimizer for standing in table], fontsize="small")
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.3)
    panel.tick_params(axis="x", labelsize="small")
    panel.set_xlabel("val/loss", fontsize="small")
