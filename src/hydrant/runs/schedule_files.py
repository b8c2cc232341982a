"""The schedules of a run as a picture and as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydrant.training.plan import Plan
from hydrant.training.plotting import draw_curves

_NUM_SCHEDULE_POINTS = 200  # in schedule.json


def draw_schedules(plan: Plan, path: Path) -> None:
    """Draw every scheduled field over the run."""
    total = plan.clock.total_updates
    updates = range(0, total, max(total // 2000, 1))  # a picture shows no more points
    curves = plan.schedule_values(updates)
    draw_curves({key: {"": (updates, values)} for key, values in curves.items()}, path)


def schedule_points(plan: Plan) -> dict[str, Any]:
    """Return the points of the schedules that `hydrant compare` draws, without those that depend on metrics."""
    last = plan.clock.total_updates - 1
    updates = sorted({n * last // (_NUM_SCHEDULE_POINTS - 1) for n in range(_NUM_SCHEDULE_POINTS)})
    return {"updates": updates, "values": plan.optimizers.schedules.curves(updates)}
