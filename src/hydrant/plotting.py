"""Pictures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_BARS = " ▁▂▃▄▅▆▇█"


def draw_schedules(schedules: Mapping[str, Sequence[float]], path: Path) -> None:
    """A PNG with a panel for every schedule, its value over the updates of the run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # pyplot is not needed and is slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.6 * len(schedules)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(schedules), 1, squeeze=False)[:, 0]
    for panel, (name, values) in zip(panels, schedules.items(), strict=True):
        panel.step(range(len(values)), values, where="post", color="#1f6feb", linewidth=1.5)
        panel.set(title=name, xlabel="update", xlim=(0, max(len(values) - 1, 1)), ylim=(0, None))
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=110, format="png")


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line of text.

    >>> sparkline([0, 1, 2, 4], width=4)
    ' ▂▄█'
    """
    top = max(values)
    columns = min(width, len(values))
    picked = [values[round(i * (len(values) - 1) / max(columns - 1, 1))] for i in range(columns)]
    return "".join(_BARS[round(v / top * (len(_BARS) - 1)) if top > 0 else 0] for v in picked)
