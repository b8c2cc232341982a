"""A comparison as one page that needs nothing else: its scripts and styles are the files beside this one."""

from __future__ import annotations

import html
import json
from pathlib import Path
from string import Template

from hydrant.compare.comparison import Comparison
from hydrant.compare.curves import curves
from hydrant.compare.output import record

SCRIPTS = (
    "dom",
    "scales",
    "state",
    "figure",
    "axes",
    "tables",
    "groups",
    "curves",
    "schedules",
    "scatter",
    "history",
    "heatmap",
    "parallel",
    "importance",
    "profile",
    "main",
)
"""In the order in which one needs the other."""

_FOLDER = Path(__file__).parent


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page."""
    data = json.dumps(record(comparison) | {"curves": curves(comparison)}, separators=(",", ":"))
    path.write_text(
        Template(_read("page.html")).substitute(
            title=html.escape(f"{comparison.goal.metric} of {len(comparison.runs)} runs"),
            style=_read("page.css"),
            figure_style=_read("figure.css"),
            data=data.replace("<", "\\u003c"),  # a label cannot end the script
            script="\n".join(_read(f"{name}.js") for name in SCRIPTS),
        ),
        encoding="utf-8",
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
