"""The curves and the schedules of a run as pictures and numbers."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from hydrant.errors import first_few
from hydrant.extensions.pictures.plotting import Curve, draw_curves
from hydrant.training.trainer import Plan

Rows = Sequence[Mapping[str, Any]]


def draw_run(rows: Rows, metric: str | None, path: Path) -> None:
    """Draw the losses, a metric, the learning rates and the norms of the gradients, as far as the rows have them."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    titles = {
        "loss": [key for key in ("train/loss", "val/loss") if key in keys],
        metric or "": [metric] if metric in keys and metric != "val/loss" else [],
        "learning rate": [key for key in keys if re.match(r"optim/(\w+/)?lr(/|$)", key)],
        "norm of the gradients": [key for key in keys if re.match(r"optim/(\w+/)?grad_norm(/|$)", key)],
    }
    panels = {
        title: {key if len(of_title) > 1 else "": curve(rows, key) for key in of_title}
        for title, of_title in titles.items()
        if of_title
    }
    if panels:
        draw_curves(panels, path, columns=2)


def curve(rows: Rows, key: str) -> Curve:
    """Return the updates and the values of a metric; a value that was not finite is NaN."""
    points = [(row["num_updates"], row[key]) for row in rows if key in row]
    return [x for x, _ in points], [math.nan if y is None else y for _, y in points]


_NUM_SCHEDULE_POINTS = 200  # in schedule.json


def draw_schedules(plan: Plan, path: Path) -> None:
    """Draw every scheduled field over the run."""
    total = plan.clock.total_updates
    updates = range(0, total, max(total // 2000, 1))  # a picture shows no more points
    curves = schedule_curves(plan, plan.schedule_values(updates)).items()
    path.write_bytes(_picture(updates, tuple((field, tuple(groups.items())) for field, groups in curves)))


@lru_cache(maxsize=16)
def _picture(updates: range, curves: Sequence[tuple[str, Sequence[tuple[str, Sequence[float]]]]]) -> bytes:
    """Return a PNG with a panel for each field. The last ones are kept, because runs of a process often share one."""
    file = BytesIO()
    draw_curves({field: {label: (updates, v) for label, v in groups} for field, groups in curves}, file)
    return file.getvalue()


def schedule_curves(
    plan: Plan, values: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Sequence[float]]]:
    """Return the values of `Plan.schedule_values` by field, such as `lr` or `critic.lr`, and by parameter group.

    Groups with the same values have one curve, named for them; the name is "" if these are all groups.
    """
    groups_of = dict[str, dict[tuple[float, ...], list[str]]]()
    for key, curve in values.items():
        optimizer, group_idx, field = key.split(".", 2)
        group = plan.optimizers.entries[optimizer].optimizer.param_groups[int(group_idx)]
        name = field if optimizer == "main" else f"{optimizer}.{field}"
        groups_of.setdefault(name, {}).setdefault(tuple(curve), []).append(str(group.get("name", group_idx)))
    return {
        name: {
            first_few(groups, noun=" groups") if len(curves) > 1 else "": curve
            for curve, groups in curves.items()
        }
        for name, curves in groups_of.items()
    }


def schedule_points(plan: Plan) -> dict[str, Any]:
    """Return the points of the schedules for schedule.json, without those that depend on metrics."""
    last = plan.clock.total_updates - 1
    updates = sorted({n * last // (_NUM_SCHEDULE_POINTS - 1) for n in range(_NUM_SCHEDULE_POINTS)})
    return {"updates": updates, "values": plan.optimizers.schedules.curves(updates)}
