"""The cost of an update in the table of docs/guides/optimizers.md, from the newest result of `update_cost`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "optimizers.md"
_PARAGRAPH = re.compile(r"^\*Update\* is .*?\n\n", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| (?P<names>`.*?) \| (?P<cost>.*?) \|(?P<rest>.*)$", re.MULTILINE)


def text(page: str, measured: Mapping[str, Any], benchmark: Mapping[str, Any]) -> str:
    """Return the page with the costs of a result. A row that names no measured optimizer stays as it is.

    Args:
        page: its text.
        measured: where the result is from.
        benchmark: the result.
    """
    ratios = {row["what"].partition(" ")[0]: row["median"] for row in benchmark["figures"]} | {"adamw": 1.0}
    head, table, rest = _split(page)
    return _PARAGRAPH.sub(f"{_explanation(measured)}\n\n", head) + _with_costs(table, ratios) + rest


def _split(page: str) -> tuple[str, str, str]:
    """Return the page before the table, the table, and the page behind it."""
    start = page.index("| optimizer | update |")
    end = page.index("\n\n", start)
    return page[:start], page[start:end], page[end:]


def _with_costs(table: str, ratios: Mapping[str, float]) -> str:
    def row(found: re.Match[str]) -> str:
        costs = [ratios[name] for name in re.findall(r"`(\w+)`", found["names"]) if name in ratios]
        low, high = (_number(cost) for cost in (min(costs, default=0.0), max(costs, default=0.0)))
        cost = found["cost"] if not costs else low if low == high else f"{low} to {high}"
        return f"| {found['names']} | {cost} |{found['rest']}"

    return _ROW.sub(row, table)


def _number(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _explanation(measured: Mapping[str, Any]) -> str:
    machine = measured["gpu"] or f"one core of {measured['cpu']}"
    link = "../../benchmarks/results/README.md#the-update-of-each-optimizer-compared-with-that-of-adamw"
    return textwrap.fill(
        "*Update* is the time of an update of the weights in multiples of AdamW's, without the forward and backward "
        "pass: "
        f"[measured]({link}) for a GPT with 2 layers of width 256, on {machine}. On a GPU, and for other shapes, it "
        "differs. A batch also costs a forward and a backward pass, so a longer update matters less if the batch is "
        "large.",
        120,
        break_long_words=False,
        break_on_hyphens=False,
    )
