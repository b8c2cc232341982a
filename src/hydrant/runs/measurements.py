"""The measurements of a run: its compilation, speed and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.runs.record import typical_value
from hydrant.training.plan import Plan
from hydrant.training.profiling import peak_flops, peak_memory_gib

_PERFORMANCE = ("updates_per_second", "samples_per_second", "mfu")


def figures(plan: Plan, row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are added to a row: figures of the compilation, and `perf/mfu`."""
    report = plan.compilation.report()
    compiled = {f"compile/{k}": v for k, v in report.summary().items()} if report.graphs else {}
    return compiled | _model_flops_utilization(plan, row)


def measurements(plan: Plan, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of summary.json about this process and the rows of the run."""
    performance = {key: typical_value(rows, f"perf/{key}") for key in _PERFORMANCE}
    performance["peak_memory_gib"] = peak_memory_gib(plan.world.device)
    return {
        "compile": plan.compilation.report().summary(),
        "perf": performance | {"training_seconds": training_seconds(rows)},
        "num_damaged_samples": plan.data.damaged.num_damaged,
        "data_files": dict(plan.data_files),
    }


def training_seconds(rows: Sequence[Mapping[str, Any]], after: int = 0) -> float | None:
    """Return the seconds of all updates after `after` up to the last one that was logged, over all starts of the run.

    The time of evaluations and checkpoints does not count; that of the first updates, which may compile, does. None:
    nothing was logged.
    """
    total, num_updates = 0.0, after
    for row in rows:
        if row["num_updates"] > after and (rate := row.get("perf/updates_per_second")):
            total += (row["num_updates"] - num_updates) / rate
            num_updates = row["num_updates"]
    return total if num_updates > after else None


def _model_flops_utilization(plan: Plan, row: Mapping[str, float]) -> dict[str, float]:
    peak, rate = peak_flops(plan.world.device), row.get("perf/samples_per_second")
    if peak is None or rate is None or not plan.flops_per_sample:
        return {}
    return {"perf/mfu": 3 * plan.flops_per_sample * rate / plan.world.world_size / peak}
