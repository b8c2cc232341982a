"""The cells with their measurements, each compared with its eager cell. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

_NUM_COMPARED = 20  # updates whose losses are compared; later, rounding errors have grown


@dataclass(frozen=True)
class Measurement:
    """The result of one repeat of a cell. With an `error`, the other fields are empty."""

    losses: list[float] = field(default_factory=list)  # of each update, including the warm-up
    update_seconds: list[float] = field(default_factory=list)  # of each update after the warm-up
    setup_seconds: float = 0.0  # to build the trainer
    start_seconds: float = 0.0  # to compile, compare with eager if configured, and warm up
    compile: Mapping[str, Any] = field(default_factory=dict)  # CompileReport.details()
    peak_memory_gib: float = 0.0  # CUDA: of tensors after the warm-up; CPU: of the whole process
    flops_per_update: int = 0  # three times the FLOPs of the forward pass
    matmul_flops: float = 0.0  # FLOP/s of a large matrix product in the cell's dtype
    peak_flops: float | None = None  # half-precision FLOP/s by the data sheet
    tolerance: float = 0.0  # how far results of this precision may differ (Precision.tolerance)
    error: str | None = None  # one line: the cell cannot run, cannot be compiled, or died
    is_refused: bool = False  # the error is a ConfigError, so the config cannot run

    @property
    def loss(self) -> float:
        """The loss of the last update."""
        return self.losses[-1]


@dataclass
class CellResult:
    """A cell, which is one config, and the measurements of its repeats, in order."""

    labels: Mapping[str, str]  # its value on every axis, {"precision": "bf16", "compile": "default"}
    config: Mapping[str, Any]  # composed and checked; empty if the cell is refused
    repeats: list[Measurement] = field(default_factory=list)
    baseline: CellResult | None = None  # the eager cell; an eager cell is its own baseline
    float32: CellResult | None = None  # the eager cell in fp32

    @property
    def name(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self.labels.items())

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

    @property
    def utilization(self) -> dict[str, float | None]:
        """The model FLOP/s relative to the fastest matrix product, because load only slows it, and to the data sheet.

        More than 1 cannot be true: other load had slowed every matrix product, or kernels save operations, as Winograd
        convolutions do.
        """
        first = self.repeats[0]
        rate = first.flops_per_update / median(self.seconds)
        return {
            "mfu_of_matmul": rate / max(m.matmul_flops for m in self.repeats),
            "mfu_of_data_sheet": None if first.peak_flops is None else rate / first.peak_flops,
        }

    @property
    def impossible_mfu(self) -> float | None:
        """The largest utilization above 1; None if each can be true."""
        return max((mfu for mfu in self.utilization.values() if mfu is not None and mfu > 1), default=None)

    def figures(self) -> dict[str, float | None]:
        """Return the figures of the table, the CSV file and the picture; empty unless the status is `ok`."""
        if self.status != "ok":
            return {}
        first, seconds = self.repeats[0], median(self.seconds)
        ratios, warm = self.speedups(self.baseline), [m.compile["seconds"] for m in self.repeats[1:]]
        over_float32 = self.speedups(self.float32)
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
            **{name: mfu if mfu is None or mfu <= 1 else None for name, mfu in self.utilization.items()},
            "final_loss": first.loss,
            "loss_difference": self.loss_difference,
        }

    def speedups(self, other: CellResult | None) -> list[float]:
        """Return the speed relative to another cell, repeat by repeat, because these ran close together in time."""
        if other is None or other.error is not None:
            return []
        return [theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=False)]

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


def with_baselines(cells: Iterable[CellResult]) -> list[CellResult]:
    """Return the cells, each connected with its eager cell and the eager cell in fp32."""
    connected = list(cells)

    def find(labels: Mapping[str, str]) -> CellResult | None:
        return next((cell for cell in connected if cell.labels == labels), None)

    for cell in connected:
        eager = {key: value for key, value in cell.labels.items() if group_of(key) != "compile"}
        eager["compile"] = "eager"  # it has no `compile.*`
        cell.baseline, cell.float32 = find(eager), find({**eager, "precision": "fp32"})
    return connected


def group_of(override: str) -> str:
    """Return the config group of a key or an override.

    >>> group_of("+compile.scope=model")
    'compile'
    """
    return override.lstrip("+~").partition("=")[0].partition(".")[0]
