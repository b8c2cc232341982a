"""A comparison as one HTML page. It contains its data, and the scripts and styles of this folder.

It works offline. With `--follow`, it is written again while runs train, and loads itself again.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from hydrant.commands.compare.comparison import Comparison
from hydrant.commands.compare.curves import curves
from hydrant.commands.compare.page.content import details, embedded_pictures, packed, progress
from hydrant.commands.compare.serialize import to_dict
from hydrant.files.atomic_write import replace_file

SCRIPTS = (
    "dom", "scales", "state", "choices", "filter", "tables", "figure", "saving", "axes", "groups", "panels", "curves",
    "schedules", "scatter", "history", "heatmap", "brush", "parallel", "profile", "noise", "sensitivity",
    "tuning", "progress", "pictures", "run", "follow", "main",
)  # fmt: skip
"""The scripts in the order of their dependencies."""

_FOLDER = Path(__file__).parent


def write_page(comparison: Comparison, path: Path, reload_seconds: float = 0.0) -> None:
    """Write the page to a file, whole or not at all. An open page loads itself again after so many seconds, if any."""
    parts: dict[str, Any] = page_data(comparison) | {
        "progress": progress(comparison.runs),
        "pictures": embedded_pictures(comparison.runs),
    }
    text = page({name: encoded(part) for name, part in parts.items()}, reload_seconds)
    replace_file(path.resolve(), text)  # write through a link instead of replacing it


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


def page(parts: Mapping[str, str], reload_seconds: float) -> str:
    """Return the page with its encoded data by name."""
    script = _script()
    return Template(_read("page.html")).substitute(
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_read("page.css"),
        figure_style=_read("figure.css"),
        reload=f"{reload_seconds:g}",
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
