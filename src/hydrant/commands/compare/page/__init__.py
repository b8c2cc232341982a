"""A comparison as one HTML page that works offline. It contains the scripts and styles of this folder."""

from __future__ import annotations

import html
import json
from pathlib import Path
from string import Template

from hydrant.commands.compare.comparison import Comparison
from hydrant.commands.compare.curves import curves
from hydrant.commands.compare.serialize import to_dict

SCRIPTS = (
    "dom", "scales", "state", "filter", "figure", "axes", "tables", "groups", "curves", "schedules", "scatter",
    "history", "heatmap", "parallel", "importance", "profile", "noise", "sensitivity", "tuning", "scaling", "main",
)  # fmt: skip
"""The scripts in the order of their dependencies."""

_FOLDER = Path(__file__).parent


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page to a file."""
    num = len(comparison.runs)
    data = json.dumps(to_dict(comparison) | {"curves": curves(comparison)}, separators=(",", ":"))
    path.write_text(
        Template(_read("page.html")).substitute(
            title=html.escape(f"{comparison.metric.name} of {num} run{'s' * (num != 1)}"),
            style=_read("page.css"),
            figure_style=_read("figure.css"),
            data=data.replace("<", "\\u003c"),  # so that a label cannot end the script
            script="\n".join(_read(f"{name}.js") for name in SCRIPTS),
        ),
        encoding="utf-8",
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
