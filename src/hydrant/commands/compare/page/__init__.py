"""A comparison as one HTML page. It contains its data, and the scripts and styles of this folder.

As a file, it works offline. `hydrant watch` serves the same page, and sends it the parts of the data that change.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from hydrant.commands.compare.comparison import Comparison
from hydrant.commands.compare.curves import curves
from hydrant.commands.compare.page.details import details
from hydrant.commands.compare.page.packing import packed
from hydrant.commands.compare.page.pictures import embedded_pictures
from hydrant.commands.compare.page.progress import progress
from hydrant.commands.compare.serialize import to_dict

SCRIPTS = (
    "dom", "scales", "state", "choices", "filter", "tables", "figure", "saving", "axes", "groups", "panels", "curves",
    "schedules", "scatter", "history", "heatmap", "brush", "parallel", "profile", "noise", "sensitivity",
    "tuning", "progress", "pictures", "run", "live", "main",
)  # fmt: skip
"""The scripts in the order of their dependencies."""

_FOLDER = Path(__file__).parent


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page to a file."""
    parts: dict[str, Any] = page_data(comparison) | {
        "progress": progress(comparison.runs),
        "pictures": embedded_pictures(comparison.runs),
    }
    path.write_text(page({name: encoded(part) for name, part in parts.items()}), encoding="utf-8")


def page_data(comparison: Comparison) -> dict[str, Any]:
    """Return the parts of the data that follow from a comparison."""
    return {
        "comparison": to_dict(comparison),
        "curves": packed(curves(comparison)),
        "details": details(comparison.runs),
    }


def encoded(part: Any) -> str:
    """Return a part of the data as compressed JSON in base64, which the page decodes."""
    text = json.dumps(part, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def page(parts: Mapping[str, str], events: str = "") -> str:
    """Return the page.

    Args:
        parts: the encoded data by name.
        events: the address from which a live page gets newer parts; "": none.
    """
    script, sources = _script(), "connect-src 'self'; img-src 'self' data: blob:" if events else ""
    return Template(_read("page.html")).substitute(
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        sources=sources or "img-src data: blob:",
        style=_read("page.css"),
        figure_style=_read("figure.css"),
        events=html.escape(events),
        data=json.dumps(parts),  # base64 cannot end the script
        script=script,
    )


@cache
def _script() -> str:
    scripts = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    return f'\n(function () {{\n"use strict";\n{scripts}\n}})();\n'


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
