"""What the measurements of a grid say: a row a cell, beside its eager cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hydrant.measuring.cells import Measurement

_COMPARED = 20


@dataclass
class Row:
    """A cell of the grid and its repeats, in their order. A cell without a baseline is compared with nothing."""

    labels: Mapping[str, str]
    repeats: list[Measurement] = field(default_factory=list)
    baseline: Row | None = None  # the same cell eager; its own is itself
    float32: Row | None = None  # the same cell eager, in fp32

    @property
    def name(self) -> str:
        return name_of(self.labels)

    @property
    def error(self) -> str | None:
        return next((m.error for m in self.repeats if m.error is not None), None)

    @property
    def status(self) -> str:
        """What came of it.

        `ok`; `differs` from its eager cell, or is `not compared`, for that one gave nothing; `failed`; `refused`: it
        cannot be; `not measured`: there was no time.
        """
        if self.error is not None:
            return "refused" if any(m.is_refused for m in self.repeats) else "failed"
        if not self.repeats:
            return "not measured"
        if self.loss_difference is None:
            return "not compared"
        return "ok" if self.loss_difference <= self.tolerance else "differs"

    @property
    def tolerance(self) -> float:
        """The most that `loss_difference` may be."""
        return self.repeats[0].tolerance

    @property
    def loss_difference(self) -> float | None:
        """By how much the loss of any update, in any repeat, is apart from eager's, relative to eager's largest.

        Of the first `_COMPARED` updates: later, rounding has grown.
        """
        if self.baseline is None or self.baseline.error is not None or not self.baseline.repeats:
            return None
        eager = self.baseline.repeats[0].losses[:_COMPARED]
        apart = [abs(a - b) for m in self.repeats for a, b in zip(m.losses, eager, strict=False)]
        return max(apart) / max(1e-3, *map(abs, eager))

    @property
    def seconds(self) -> list[float]:
        """The median of an update, of each repeat."""
        return [median(m.update_seconds) for m in self.repeats]

    def figures(self) -> dict[str, float | None]:
        """What the table, the CSV and the picture show; empty where the cell gave no result to trust."""
        if self.status != "ok":
            return {}
        first, seconds = self.repeats[0], median(self.seconds)
        ratios, cached = self.speedups(self.baseline), [m.compile["seconds"] for m in self.repeats[1:]]
        over_float32 = self.speedups(self.float32)
        rate = first.flops_per_update / seconds
        return {
            "update_ms": 1e3 * seconds,
            "update_ms_min": 1e3 * min(self.seconds),
            "update_ms_max": 1e3 * max(self.seconds),
            "speedup": median(ratios) if ratios else None,
            "speedup_min": min(ratios, default=None),
            "speedup_max": max(ratios, default=None),
            "speedup_over_fp32": median(over_float32) if over_float32 else None,
            "peak_memory_gib": max(m.peak_memory_gib for m in self.repeats),
            "compile_seconds_cold": first.compile["seconds"],
            "compile_seconds_warm": median(cached) if cached else None,
            "graphs": first.compile["graphs"],
            "graph_breaks": len(first.compile["graph_breaks"]),
            "recompiles": len(first.compile["recompiles"]),
            "mfu_of_matmul": rate / median([m.matmul_flops for m in self.repeats]),
            "mfu_of_data_sheet": None if first.peak_flops is None else rate / first.peak_flops,
            "final_loss": first.loss,
            "loss_difference": self.loss_difference,
        }

    def speedups(self, over: Row | None) -> list[float]:
        """How many times as fast as another row, repeat by repeat: those beside each other in time."""
        if over is None or over.error is not None:
            return []
        return [other / own for own, other in zip(self.seconds, over.seconds, strict=False)]

    def record(self) -> dict[str, Any]:
        """Everything, as bench.json shows it."""
        judged = {} if self.status not in ("ok", "differs") else {
            "loss_difference": self.loss_difference, "tolerance": self.tolerance
        }  # fmt: skip
        return {
            "labels": dict(self.labels),
            "status": self.status,
            "error": self.error,
            **judged,
            "figures": self.figures(),
            "repeats": [vars(m) for m in self.repeats],
        }


def name_of(labels: Mapping[str, str]) -> str:
    return " ".join(f"{axis}={value}" for axis, value in labels.items())


def rows_of(cells: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> list[Row]:
    """Rows without repeats, for the labels of each cell and those of its eager cell."""
    rows = [Row(labels) for labels, _ in cells]

    def find(labels: Mapping[str, str]) -> Row | None:
        return next((row for row in rows if row.labels == labels), None)

    for row, (_, eager) in zip(rows, cells, strict=True):
        row.baseline, row.float32 = find(eager), find({**eager, "precision": "fp32"})
    return rows
