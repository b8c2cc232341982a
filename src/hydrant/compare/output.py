"""A comparison as plain values, and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from hydrant.compare.comparison import Comparison
from hydrant.compare.groups import Group, passed_over
from hydrant.compare.keys import label
from hydrant.compare.sources import Run
from hydrant.compare.statistics import CONFIDENCE
from hydrant.compare.targets import Reached
from hydrant.objectives import Objective
from hydrant.trackers.record import finite

FIGURES = {
    "updates_per_second": "perf",
    "samples_per_second": "perf",
    "peak_memory_gib": "perf",
    "mfu": "perf",
    "graphs": "compile",
    "graph_breaks": "compile",
    "recompiles": "compile",
    "compile_seconds": "compile",
}
"""Speed, memory and compilation: each with its place in a summary."""


def record(comparison: Comparison) -> dict[str, Any]:
    """Everything but the curves, as JSON can say it."""
    c = comparison
    return finite(
        {
            "metric": c.goal.metric,
            "mode": c.goal.mode,
            "confidence": CONFIDENCE,
            "interval": "Student's t",
            "test": "paired t-test, corrected by Holm",
            "keys": list(c.keys),
            "by": list(c.by),
            "price_per_hour": c.price_per_hour,
            "winner": None if c.winner is None else c.winner.name,
            "passed_over": []
            if c.winner is None
            else [g.name for g in passed_over(c.groups, c.winner, c.goal)],
            "runner_up": None if c.runner_up is None else c.runner_up.name,
            "lead": None if c.lead is None else asdict(c.lead),
            "baseline": None if c.baseline is None else c.baseline.name,
            "is_baseline_given": c.is_baseline_given,
            "warnings": [asdict(warned) for warned in c.warnings],
            "groups": [_group(group) | _reached(c.reached.get(group.name)) for group in c.groups],
            "num_cells": c.num_cells,
            "missing": list(c.missing),
            "runs": [run_row(run, c) for run in c.runs],
            "importance": None
            if c.importance is None
            else asdict(c.importance) | {"is_reliable": c.importance.is_reliable},
            "target": None if c.target is None else str(c.target),
            "objectives": [asdict(objective) for objective in objectives(c.runs)],
            "profiles": {
                unit: {
                    "taus": profile.taus.tolist(),
                    "ratios": {name: curve.tolist() for name, curve in profile.ratios.items()},
                    "scores": dict(profile.scores),
                }
                for unit, profile in c.profiles.items()
            },
        }
    )


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "labels": dict(group.labels),
        "num_runs": group.num_runs,
        "shortfall": group.shortfall,
        "states": dict(group.states),
        **asdict(group.estimate),
        "best": group.best,
        "versus": None if group.versus is None else asdict(group.versus),
        "runs": [run.name for run in group.runs],
    }


def _reached(found: Reached | None) -> dict[str, Any]:
    return {} if found is None else {"reached": found.num, "to_target": dict(found.times)}


def run_row(run: Run, comparison: Comparison) -> dict[str, Any]:
    """One run: what tells it from the others, how it ended, its results and figures."""
    goal, summary = comparison.goal, run.summary
    return {
        "name": run.name,
        "labels": {key: label(run, key) for key in comparison.keys},
        "state": run.state,
        "error": run.error,
        "num_updates": summary.get("num_updates"),
        "total_updates": summary.get("total_updates"),
        "final": goal.final(run),
        "best": goal.best_of(run),
        "figures": {name: figure(summary, name) for name in FIGURES},
        "to_target": comparison.times.get(run.name),
        "trial": (summary.get("trial") or {}).get("number"),
        "objectives": {o.metric: o.value(summary, _rows(run, o.metric)) for o in objectives([run])},
    }


def objectives(runs: Iterable[Run]) -> list[Objective]:
    """What the studies were after that runs are trials of."""
    told = [objective for run in runs for objective in (run.summary.get("trial") or {}).get("objectives", ())]
    return list(dict.fromkeys(Objective(**objective) for objective in told))


def _rows(run: Run, metric: str) -> list[dict[str, float]]:
    """The rows of a run's record that hold a metric."""
    if (series := run.series.get(metric)) is None:
        return []
    pairs = zip(series.updates.tolist(), series.values.tolist(), strict=True)
    return [{"num_updates": num_updates, metric: value} for num_updates, value in pairs]


def figure(summary: Mapping[str, Any], name: str) -> float | None:
    """A figure of a summary; None where it is not known, or nothing was compiled."""
    section = summary.get(FIGURES[name]) or {}
    if FIGURES[name] == "compile" and not section.get("graphs"):
        return None
    return section.get(name.removeprefix("compile_"))


def as_json(comparison: Comparison) -> str:
    return json.dumps(record(comparison), indent=2)


def as_csv(comparison: Comparison) -> str:
    """A line a run; what it has not is empty."""
    c, text = comparison, io.StringIO()
    units = list(next(iter(c.times.values()), {}))
    table = csv.writer(text, lineterminator="\n")
    titles = ["state", "num_updates", c.goal.metric, f"best {c.goal.metric}", *FIGURES]
    table.writerow(["run", *c.keys, *titles, *(f"{unit} to {c.target}" for unit in units), "error"])
    for run in c.runs:
        row = finite(run_row(run, c))
        told = [row[name] for name in ("state", "num_updates", "final", "best")]
        times = [row["to_target"][unit] for unit in units]
        table.writerow(
            [row["name"], *row["labels"].values(), *told, *row["figures"].values(), *times, row["error"]]
        )
    return text.getvalue().rstrip("\n")
