"""The values of a run: its labels, state, results and figures, as the tables and JSON show them."""

from collections.abc import Iterable, Mapping
from typing import Any

from hydrant.commands.compare.comparison import Comparison
from hydrant.commands.compare.config_keys import label
from hydrant.commands.compare.run import Run
from hydrant.sweeps.optuna.objectives import Objective

FIGURES = {
    "updates_per_second": ("perf", "updates/s"),
    "samples_per_second": ("perf", "samples/s"),
    "peak_memory_gib": ("perf", "GiB"),
    "mfu": ("perf", "MFU"),
    "graphs": ("compile", "graphs"),
    "graph_breaks": ("compile", "breaks"),
    "recompiles": ("compile", "recompiles"),
    "compile_seconds": ("compile", "compile s"),
}
"""Speed, memory and compilation, each with its section of the summary ("": it is a field of its own) and its title."""


def run_to_dict(run: Run, comparison: Comparison) -> dict[str, Any]:
    """Return the labels, state, results and figures of a run."""
    metric, summary = comparison.metric, run.summary
    return {
        "name": run.name,
        "labels": {key: label(run, key) for key in comparison.keys},
        "state": run.state,
        "error": run.error,
        "num_updates": summary.get("num_updates"),
        "total_updates": summary.get("total_updates"),
        "final": metric.final(run),
        "measured_at": metric.measured_at(run),
        "best": metric.best_of(run),
        "figures": {name: figure(summary, name) for name in FIGURES},
        "to_target": comparison.times.get(run.name),
        "stretches": summary.get("stretches") or [],
        "trial": (summary.get("trial") or {}).get("number"),
        "objectives": {o.metric: o.value(summary, _rows(run, o.metric)) for o in objectives([run])},
    }


def objectives(runs: Iterable[Run]) -> list[Objective]:
    """Return the objectives of the studies whose trials are among the runs."""
    entries = [entry for run in runs for entry in (run.summary.get("trial") or {}).get("objectives", ())]
    return list(dict.fromkeys(Objective(entry["metric"], entry["mode"]) for entry in entries))


def _rows(run: Run, metric: str) -> list[dict[str, float]]:
    """Return the rows of metrics.jsonl that hold a metric."""
    if (series := run.series.get(metric)) is None:
        return []
    pairs = zip(series.updates.tolist(), series.values.tolist(), strict=True)
    return [{"num_updates": num_updates, metric: value} for num_updates, value in pairs]


def figure(summary: Mapping[str, Any], name: str) -> float | None:
    """Return a figure of a summary; None if it is unknown or nothing was compiled."""
    section = FIGURES[name][0]
    values = (summary.get(section) or {}) if section else summary
    if section == "compile" and not values.get("graphs"):
        return None
    return values.get(name.removeprefix("compile_"))
