"""Train a config for a few updates, in a fresh process and without a run folder, and measure it."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hydrant.bare import ask, bare_run, prepare_for
from hydrant.build import Prepared
from hydrant.config.targets import imports_of
from hydrant.errors import ConfigError, HydrantError, NonFiniteError, location, typed_line
from hydrant.isolation import Stopped
from hydrant.loop import make_update
from hydrant.parts import Run
from hydrant.profiling import matmul_rate, peak_flops, peak_memory_gib, synchronise
from hydrant.signals import StopRequest
from hydrant.trial import check_compiled


@dataclass(frozen=True)
class Cell:
    """One config of a grid."""

    labels: Mapping[str, str]  # {"precision": "bf16", "compile": "default"}
    config: Mapping[str, Any]  # composed and checked


@dataclass(frozen=True)
class Measurement:
    """What one repeat of a cell gave. With an `error`, the rest is empty."""

    losses: list[float] = field(default_factory=list)  # of each update, those of the warm-up too
    update_seconds: list[float] = field(default_factory=list)  # of each update after the warm-up
    setup_seconds: float = 0.0  # to build the run
    start_seconds: float = 0.0  # to compile it, to compare it with eager where asked for, and to warm up
    compile: Mapping[str, Any] = field(default_factory=dict)  # CompileReport.details()
    peak_memory_gib: float = 0.0  # CUDA: of tensors, after the warm-up; CPU: of the process, ever
    flops_per_update: int = 0  # three times those of the forward pass
    matmul_flops: float = 0.0  # FLOP/s of a large matrix product in the cell's number format
    peak_flops: float | None = None  # FLOP/s by the data sheet, in half precision
    tolerance: float = 0.0  # by how much numbers of this precision may differ (Precision.tolerance)
    error: str | None = None  # one line: it cannot run, cannot be compiled, or died
    is_refused: bool = False  # the error is a ConfigError: the config cannot run

    @property
    def loss(self) -> float:
        """Of the last update."""
        return self.losses[-1]


def measure_grid(
    cells: Sequence[Cell], *, repeats: int, num_updates: int, warmup: int, cache_dir: Path
) -> Iterator[tuple[Cell, Measurement]]:
    """Every cell once, then every cell again, so that what else the machine does meets all alike.

    Each has a folder of its own in `cache_dir`: where that was empty, the first repeat compiles cold and the
    later ones find the code. A cell that gave an error is not repeated.

    Raises:
        Stopped: a signal arrived meanwhile.
    """
    preload = imports_of([cell.config for cell in cells])
    remaining = list(enumerate(cells))
    with StopRequest("stopping") as stop:  # between two processes too
        for _ in range(repeats):
            for position, cell in list(remaining):
                config = _adapted(cell.config, cache_dir / str(position))
                answer = ask(_measure, config, num_updates, warmup, preload=preload)
                measurement = answer if isinstance(answer, Measurement) else Measurement(error=str(answer))
                if measurement.error is not None:
                    remaining.remove((position, cell))
                yield cell, measurement
                signum = stop()
                if signum is not None:
                    raise Stopped(128 + signum)


def _adapted(config: Mapping[str, Any], cache_dir: Path) -> Mapping[str, Any]:
    """The config with that cache, and without going on eager: that would be measured as compiled."""
    own = {"on_failure": "fail", "cache_dir": str(cache_dir)}
    known = {key: value for key, value in own.items() if key in config["compile"]}  # eager has none
    return {**config, "compile": {**config["compile"], **known}}


def _measure(config: Mapping[str, Any], num_updates: int, warmup: int) -> Measurement:
    try:
        began = time.perf_counter()
        prepared = prepare_for(config, num_updates + warmup)
        with bare_run(prepared) as run:
            return _train(run, prepared, num_updates, warmup, time.perf_counter() - began)
    except HydrantError as error:
        return Measurement(error=" ".join(str(error).split()), is_refused=isinstance(error, ConfigError))
    except (Exception, SystemExit) as error:  # of a user's part, a backend, the device's memory
        return Measurement(error=f"{typed_line(error)} (at {location(error)})")


def _train(run: Run, prepared: Prepared, num_updates: int, warmup: int, setup_seconds: float) -> Measurement:
    device = run.world.device
    began = time.perf_counter()
    if run.compilation.is_on:
        check_compiled(run)
    updates = [_update(run) for _ in range(warmup)]
    start_seconds = time.perf_counter() - began
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    updates += [_update(run) for _ in range(num_updates)]
    return Measurement(
        losses=[loss for loss, _ in updates],
        update_seconds=[seconds for _, seconds in updates[warmup:]],
        setup_seconds=setup_seconds,
        start_seconds=start_seconds,
        compile=run.compilation.report().details(),
        peak_memory_gib=_peak_memory_gib(device),
        flops_per_update=3 * prepared.flops_per_sample * run.spec.global_batch_size,
        matmul_flops=matmul_rate(device, _compute_dtype(run)),
        peak_flops=peak_flops(device),
        tolerance=run.precision.tolerance,
    )


def _update(run: Run) -> tuple[float, float]:
    """Make an update; its loss, and the seconds it took until the device was done."""
    synchronise(run.world.device)
    began = time.perf_counter()
    make_update(run, measure=False)
    synchronise(run.world.device)
    seconds = time.perf_counter() - began
    run.compilation.follow(run.state.num_updates)
    loss = run.meter.read().get("loss", math.nan)  # none where the update was passed over
    if not math.isfinite(loss):
        raise NonFiniteError("train/loss", run.state.num_updates - 1, run.state.num_updates)
    return loss, seconds


def _peak_memory_gib(device: torch.device) -> float:
    allocated = peak_memory_gib(device)
    if allocated is not None:
        return allocated
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _compute_dtype(run: Run) -> torch.dtype:
    """In what a matrix product of the run's parameters is computed; products in float8 count as their autocast's."""
    weight = torch.ones(1, 1, device=run.world.device, dtype=next(run.model.parameters()).dtype)
    with run.precision.autocast():
        return (weight @ weight).dtype
