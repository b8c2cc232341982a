"""Measure cells: train each for a few updates in a fresh process and without a run folder."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hydrant.commands.bench.results import CellResult, Measurement
from hydrant.commands.isolated import run_isolated
from hydrant.errors import ConfigError, HydrantError, NonFiniteError, location, typed_line
from hydrant.safety.targets import preload_paths
from hydrant.signals import Stopped, StopRequest
from hydrant.training.loop import make_update
from hydrant.training.prepare.scratch import prepare_at_least, scratch_trainer
from hydrant.training.prepare.verify_compile import check_compiled
from hydrant.training.profiling import matmul_rate, peak_flops, peak_memory_gib, synchronize
from hydrant.training.trainer import Trainer


def measure_cells(
    cells: Sequence[CellResult], *, repeats: int, num_updates: int, warmup: int, cache_dir: Path
) -> Iterator[CellResult]:
    """Measure all cells in `repeats` rounds, so that other load affects all alike. Yield each measured cell.

    Each cell has its own folder in `cache_dir`: its first repeat compiles cold, the later ones reuse the code. A cell
    with an error is not measured again.

    Raises:
        Stopped: a signal arrived.
    """
    preload = preload_paths([cell.config for cell in cells if cell.error is None])
    with StopRequest("stopping") as stop:  # also catches a signal between two processes
        for position, cell in list(enumerate(cells)) * repeats:
            if cell.error is not None:
                continue
            config = _bench_config(cell.config, cache_dir / str(position))
            result = run_isolated(_measure_cell, config, num_updates, warmup, preload=preload)
            is_measured = isinstance(result, Measurement)
            cell.repeats.append(result if is_measured else Measurement(error=str(result)))
            yield cell
            if (signum := stop()) is not None:
                raise Stopped(128 + signum)


def _bench_config(config: Mapping[str, Any], cache_dir: Path) -> Mapping[str, Any]:
    """Return the config with this cache and without a fallback to eager, which would be measured as compiled."""
    settings = {"on_failure": "fail", "cache_dir": str(cache_dir)}
    changes = {key: value for key, value in settings.items() if key in config["compile"]}  # none if eager
    return {**config, "compile": {**config["compile"], **changes}}


def _measure_cell(config: Mapping[str, Any], num_updates: int, warmup: int) -> Measurement:
    try:
        start = time.perf_counter()
        with scratch_trainer(prepare_at_least(config, num_updates + warmup)) as trainer:
            return _train(trainer, num_updates, warmup, time.perf_counter() - start)
    except HydrantError as error:
        return Measurement(error=" ".join(str(error).split()), is_refused=isinstance(error, ConfigError))
    except (Exception, SystemExit) as error:  # from user code, a backend or full device memory
        return Measurement(error=f"{typed_line(error)} (at {location(error)})")


def _train(trainer: Trainer, num_updates: int, warmup: int, setup_seconds: float) -> Measurement:
    plan, device = trainer.plan, trainer.plan.world.device
    start = time.perf_counter()
    if plan.compilation.is_on:
        check_compiled(trainer)
    updates = [time_update(trainer) for _ in range(warmup)]
    start_seconds = time.perf_counter() - start
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    updates += [time_update(trainer) for _ in range(num_updates)]
    return Measurement(
        losses=[loss for loss, _ in updates],
        update_seconds=[seconds for _, seconds in updates[warmup:]],
        setup_seconds=setup_seconds,
        start_seconds=start_seconds,
        compile=plan.compilation.report().details(),
        peak_memory_gib=_peak_memory_gib(device),
        flops_per_update=3 * plan.flops_per_sample * plan.spec.batch_sizes.value(warmup),
        matmul_flops=matmul_rate(device, _compute_dtype(trainer)),
        peak_flops=peak_flops(device),
        tolerance=plan.precision.tolerance,
    )


def time_update(trainer: Trainer) -> tuple[float, float]:
    """Make an update and return (loss, seconds until the device had finished)."""
    synchronize(trainer.plan.world.device)
    start = time.perf_counter()
    make_update(trainer, measure=False)
    synchronize(trainer.plan.world.device)
    seconds = time.perf_counter() - start
    trainer.plan.compilation.check_recompiles(trainer.state.num_updates)
    loss = trainer.meter.read().get("loss", math.nan)  # missing if the update was skipped
    if not math.isfinite(loss):
        raise NonFiniteError("train/loss", trainer.state.num_updates - 1, trainer.state.num_updates)
    return loss, seconds


def _peak_memory_gib(device: torch.device) -> float:
    allocated = peak_memory_gib(device)
    if allocated is not None:
        return allocated
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _compute_dtype(trainer: Trainer) -> torch.dtype:
    """Return the dtype of matrix products with the run's parameters; for float8, the dtype of autocast."""
    weight = torch.ones(1, 1, device=trainer.plan.world.device, dtype=next(trainer.model.parameters()).dtype)
    with trainer.plan.precision.autocast():
        return (weight @ weight).dtype
