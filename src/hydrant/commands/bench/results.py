"""The results of the cells, each compared with its eager cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hydrant.commands.bench.measure import Measurement

_NUM_COMPARED = 20  # updates whose losses are compared; later, rounding errors have grown


@dataclass
class CellResult:
    """A cell and the measurements of its repeats, in order."""

    labels: Mapping[str, str]
    repeats: list[Measurement] = field(default_factory=list)
    baseline: CellResult | None = None  # the eager cell; an eager cell is its own baseline
    float32: CellResult | None = None  # the eager cell in fp32

    @property
    def name(self) -> str:
        return cell_name(self.labels)

    @property
    def error(self) -> str | None:
        return next((m.error for m in self.repeats if m.error is not None), None)

    @property
    def status(self) -> str:
        """`ok`, `differs`, `not compared`, `failed`, `refused` or `not measured`.

        `differs`: its losses are not those of the eager cell. `not compared`: the eager cell has no result. `refused`:
        the config cannot run. `not measured`: the command was stopped before.
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
        """The largest allowed `loss_difference`."""
        return self.repeats[0].tolerance

    @property
    def loss_difference(self) -> float | None:
        """The largest difference of a loss in any repeat from the eager one, relative to the largest eager loss."""
        if self.baseline is None or self.baseline.error is not None or not self.baseline.repeats:
            return None
        eager = self.baseline.repeats[0].losses[:_NUM_COMPARED]
        differences = [abs(a - b) for m in self.repeats for a, b in zip(m.losses, eager, strict=False)]
        return max(differences) / max(1e-3, *map(abs, eager))

    @property
    def seconds(self) -> list[float]:
        """The median seconds of an update in each repeat."""
        return [median(m.update_seconds) for m in self.repeats]

    def figures(self) -> dict[str, float | None]:
        """Return the figures of the table, the CSV file and the picture; empty unless the status is `ok`."""
        if self.status != "ok":
            return {}
        first, seconds = self.repeats[0], median(self.seconds)
        ratios, warm = self.speedups(self.baseline), [m.compile["seconds"] for m in self.repeats[1:]]
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
            "compile_seconds_warm": median(warm) if warm else None,
            "graphs": first.compile["graphs"],
            "graph_breaks": len(first.compile["graph_breaks"]),
            "recompiles": len(first.compile["recompiles"]),
            "mfu_of_matmul": rate / median([m.matmul_flops for m in self.repeats]),
            "mfu_of_data_sheet": None if first.peak_flops is None else rate / first.peak_flops,
            "final_loss": first.loss,
            "loss_difference": self.loss_difference,
        }

    def speedups(self, other: CellResult | None) -> list[float]:
        """Return the speed relative to another cell, repeat by repeat, because these ran close together in time."""
        if other is None or other.error is not None:
            return []
        return [
            other_seconds / seconds
            for seconds, other_seconds in zip(self.seconds, other.seconds, strict=False)
        ]

    def record(self) -> dict[str, Any]:
        """Return everything, for bench.json."""
        comparison = {} if self.status not in ("ok", "differs") else {
            "loss_difference": self.loss_difference, "tolerance": self.tolerance
        }  # fmt: skip
        return {
            "labels": dict(self.labels),
            "status": self.status,
            "error": self.error,
            **comparison,
            "figures": self.figures(),
            "repeats": [vars(m) for m in self.repeats],
        }


def cell_name(labels: Mapping[str, str]) -> str:
    return " ".join(f"{axis}={value}" for axis, value in labels.items())


def new_results(cells: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> list[CellResult]:
    """Return results without repeats for pairs of (labels of the cell, labels of its eager cell)."""
    results = [CellResult(labels) for labels, _ in cells]

    def find(labels: Mapping[str, str]) -> CellResult | None:
        return next((result for result in results if result.labels == labels), None)

    for result, (_, eager) in zip(results, cells, strict=True):
        result.baseline, result.float32 = find(eager), find({**eager, "precision": "fp32"})
    return results
