"""`hydrant bench`: compare precisions and compile settings, each measured in fresh processes without a run folder.

A cell is one config: a combination of the swept values. Each has an eager cell, with which it is compared.
"""

from __future__ import annotations

import math
import os
import resource
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hydrant.config.check import check
from hydrant.config.command_line import Flags, writing_to
from hydrant.config.compose import combinations, compose, uncompiled
from hydrant.config.flat import run_folder
from hydrant.errors import ConfigError, HydrantError, NonFiniteError, location, typed_line
from hydrant.files.on_disk import write_json
from hydrant.files.plain_values import NotNegativeInt, PositiveInt, check_value
from hydrant.records import Answer
from hydrant.runs.folder import SUMMARY, choices_in, missing_folders, remove_if_empty
from hydrant.runs.reporter import describe_environment
from hydrant.safety.targets import preload_paths
from hydrant.signals import Stopped, StopRequest
from hydrant.sweeps.fork_server.call import check_num_updates, run_isolated
from hydrant.terminal.console import notice, relative, tell
from hydrant.terminal.text import align_columns
from hydrant.training.costs import matmul_rate, peak_memory_gib, synchronize
from hydrant.training.distributed.world import World
from hydrant.training.loop import make_update
from hydrant.training.prepare.micro_batch import prepare_at_least, scratch_trainer
from hydrant.training.trainer import Trainer

_NUM_COMPARED = 20  # updates whose losses are compared; later, rounding errors have grown


class Bench(Answer):
    """The measurements, as in bench.json.

    Attributes:
        cells: One for each combination of settings.
    """

    folder: str
    environment: Mapping[str, Any]
    num_cpus: int | None
    num_threads: int
    overrides: Sequence[str]
    repeats: int
    updates: int
    warmup: int
    cells: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """The result of one repeat of a cell. With an `error`, the other fields are empty."""

    losses: list[float] = field(default_factory=list)  # of each update, including the warm-up
    update_seconds: list[float] = field(default_factory=list)  # of each update after the warm-up
    start_seconds: float = 0.0  # to compile, compare with eager if configured, and warm up
    compile: Mapping[str, Any] = field(default_factory=dict)  # CompileReport.details()
    peak_memory_gib: float = 0.0  # CUDA: of tensors after the warm-up; CPU: of the whole process
    flops_per_update: int = 0  # three times the FLOPs of the forward pass
    matmul_flops: float = 0.0  # FLOP/s of a large matrix product in the cell's dtype
    tolerance: float = 0.0  # how far results of this precision may differ (Precision.tolerance)
    error: str | None = None  # one line: the cell cannot run, cannot be compiled, or died
    is_refused: bool = False  # the error is a ConfigError, so the config cannot run


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
    def utilization(self) -> float | None:
        """The model FLOP/s relative to the fastest matrix product, because load only slows it.

        More than 1 cannot be true, and is None: other load had slowed every matrix product, or kernels save operations,
        as Winograd convolutions do.
        """
        rate = self.repeats[0].flops_per_update / median(self.seconds)
        mfu = rate / max(m.matmul_flops for m in self.repeats)
        return mfu if mfu <= 1 else None

    def figures(self) -> dict[str, float | None]:
        """Return the figures of the table; empty unless the status is `ok`."""
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
            "mfu_of_matmul": self.utilization,
            "final_loss": first.losses[-1],
            "loss_difference": self.loss_difference,
        }

    def speedups(self, other: CellResult | None) -> list[float]:
        """Return the speed relative to another cell, repeat by repeat, because these ran close together in time."""
        if other is None or other.error is not None:
            return []
        return [theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=False)]

    def record(self) -> dict[str, Any]:
        """Return everything, for bench.json."""
        compared = ("loss_difference", "tolerance") if self.status in ("ok", "differs") else ()
        return {
            "labels": dict(self.labels),
            "status": self.status,
            "error": self.error,
            **{key: getattr(self, key) for key in compared},
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


def measure_cells(
    cells: Sequence[CellResult], repeats: int, num_updates: int, warmup: int, cache_dir: Path
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
            # Without a fallback to eager, which would be measured as compiled. An eager cell has no such settings.
            settings = {"on_failure": "fail", "cache_dir": str(cache_dir / str(position))}
            compilation = {key: settings.get(key, value) for key, value in cell.config["compile"].items()}
            config = {**cell.config, "compile": compilation}
            result = run_isolated(_measure_cell, config, num_updates, warmup, preload=preload)
            cell.repeats.append(result if isinstance(result, Measurement) else Measurement(error=str(result)))
            yield cell
            if (signum := stop()) is not None:
                raise Stopped(128 + signum)


def _measure_cell(config: Mapping[str, Any], num_updates: int, warmup: int) -> Measurement:
    try:
        with scratch_trainer(prepare_at_least(config, num_updates + warmup)) as trainer:
            return _train(trainer, num_updates, warmup)
    except HydrantError as error:
        return Measurement(error=" ".join(str(error).split()), is_refused=isinstance(error, ConfigError))
    except (Exception, SystemExit) as error:  # from user code, a backend or full device memory
        return Measurement(error=f"{typed_line(error)} (at {location(error)})")


def _train(trainer: Trainer, num_updates: int, warmup: int) -> Measurement:
    plan, device = trainer.plan, trainer.plan.world.device
    start = time.perf_counter()
    plan.compilation.begin(trainer)
    updates = [time_update(trainer) for _ in range(warmup)]
    start_seconds = time.perf_counter() - start
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    updates += [time_update(trainer) for _ in range(num_updates)]
    return Measurement(
        losses=[loss for loss, _ in updates],
        update_seconds=[seconds for _, seconds in updates[warmup:]],
        start_seconds=start_seconds,
        compile=plan.compilation.report().details(),
        peak_memory_gib=peak_memory_gib(device) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        flops_per_update=plan.clock.costs.flops * plan.spec.batch_sizes.value(warmup),
        matmul_flops=matmul_rate(device, _compute_dtype(trainer)),
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


def _compute_dtype(trainer: Trainer) -> torch.dtype:
    """Return the dtype of matrix products with the run's parameters; for float8, the dtype of autocast."""
    weight = torch.ones(1, 1, device=trainer.plan.world.device, dtype=next(trainer.model.parameters()).dtype)
    with trainer.plan.precision.autocast():
        return (weight @ weight).dtype


def _check_free(folder: Path, key: str) -> None:
    """Check that the folder of the results can be written and holds no others; `key` names it.

    Raises:
        ConfigError: it cannot be written, or is in use.
    """
    for file, content in ((SUMMARY, "a run"), ("bench.json", "results of bench")):
        if (folder / file).exists():
            raise ConfigError(key, f"{folder} already contains {content}", remedy="choose another folder")
    with writing_to("--output", folder / "bench.json"):
        pass


def _write(
    folder: Path, record: dict[str, Any], results: Sequence[CellResult], claims: Sequence[str]
) -> None:
    """Write bench.json, and print the table (or the JSON) with the claims of the experiment."""
    with writing_to("--output", folder / "bench.json"):
        write_json(folder / "bench.json", record)
    place = relative(folder.absolute())
    claim_lines = "".join(f"claim: {claim}\n" for claim in claims)
    text = f"\n{table(results)}\n{LEGEND}\n{claim_lines}all measurements are in {place}"
    tell(text, {"folder": place, **record})


_COLUMNS = {
    "ms per update": "{update_ms:.1f} ({update_ms_min:.1f}-{update_ms_max:.1f})",
    "speed-up": "{speedup:.2f}x ({speedup_min:.2f}-{speedup_max:.2f})",
    "over fp32": "{speedup_over_fp32:.2f}x",
    "GiB": "{peak_memory_gib:.2f}",
    "cold s": "{compile_seconds_cold:.1f}",
    "warm s": "{compile_seconds_warm:.1f}",
    "graphs": "{graphs}",
    "breaks": "{graph_breaks}",
    "recompiles": "{recompiles}",
    "MFU": "{mfu_of_matmul:.1%}",
}
"""Title and format of each column of the table. A column that is empty in every row is left out."""

LEGEND = """
ms per update: median of the repeats' medians (range). speed-up: over the eager cell, repeat by repeat (range).
GiB: peak memory of tensors on CUDA; on a CPU that of the process, including compilation. cold s, warm s: seconds of
compilation in the first repeat and in those that reuse its code. MFU: three times the FLOPs of the forward pass per
second, relative to a large matrix product, the fastest of the repeats; none if above 1.
"""

_MAX_NOTE = 120  # characters of a reason in the table


def table(results: Sequence[CellResult]) -> str:
    """Return a table with a line for each cell: its figures, or the reason why it has none."""
    axes = max((list(result.labels) for result in results), key=len)  # eager cells have no `compile.*`
    figures_of_all = [result.figures() for result in results]
    titles = [title for title, spec in _COLUMNS.items() if any(_format(spec, f) for f in figures_of_all)]
    lines = [[*axes, *titles]]
    for result, figures in zip(results, figures_of_all, strict=True):
        lines.append([result.labels.get(axis, "-") for axis in axes])
        if figures:
            lines[-1] += [_format(_COLUMNS[title], figures) or "-" for title in titles]
    texts = align_columns(lines, range(len(axes)))
    for n, result in enumerate(results, 1):
        if text := _reason(result):
            more = "" if len(text) <= _MAX_NOTE else "... (see bench.json)"
            texts[n] += f"  {result.status}: {text[:_MAX_NOTE]}{more}"
    return "\n".join(texts)


def _reason(result: CellResult) -> str:
    """Return why a cell has no figures, or ""."""
    if result.status == "differs":
        difference, tolerance = f"{result.loss_difference:.2g}", f"{result.tolerance:g}"
        return f"its loss differs from eager's by a ratio of {difference}; rounding explains {tolerance}"
    if result.status == "not compared":
        return "its eager cell has no result"
    return result.error or ("" if result.repeats else "the command was stopped before")


def _format(spec: str, figures: Mapping[str, Any]) -> str:
    """Return the content of a column, or "" if a figure is missing."""
    try:
        return spec.format(**figures)
    except (KeyError, TypeError):
        return ""


def run_bench(options: Namespace, overrides: Sequence[str]) -> int:
    """Measure the grid of the overrides and return the exit status.

    Raises:
        ConfigError: no cell can run, or the results cannot be written.
        Stopped, KeyboardInterrupt: a signal arrived, or Ctrl-C was pressed twice. If any cell was measured before, the
            results until then are written.
    """
    overrides = with_defaults(overrides, on_gpu=torch.cuda.is_available())
    results = plan_cells(overrides)
    _check_any_can_run(results)
    configs = [result.config for result in results if result.error is None]
    claims = list(dict.fromkeys(config["claim"] for config in configs if config["claim"] is not None))
    check_num_updates(configs[0], options.warmup + options.updates)
    world = World.from_launcher()
    record = {
        "environment": describe_environment(world.device, world.world_size),
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "overrides": list(overrides),
        **{key: getattr(options, key) for key in ("repeats", "updates", "warmup")},
    }
    folder = options.output or Path(run_folder("outputs", configs[0]["name"]))
    new_folders = missing_folders(folder)
    try:
        _check_free(folder, "name" if options.output is None else "--output")
        _measure_all(results, options, folder)
        _check_any_can_run(results)
    finally:
        if any(result.repeats and result.status != "refused" for result in results):
            _write(folder, record | {"cells": [result.record() for result in results]}, results, claims)
        remove_if_empty(new_folders)
    return int(any(result.status in ("failed", "differs", "not compared") for result in results))


def _check_any_can_run(results: Sequence[CellResult]) -> None:
    if all(result.status == "refused" for result in results):
        first = results[0]
        raise ConfigError("", f"{first.error} [{first.name}; none of {len(results)} cells can run]")


def _measure_all(results: Sequence[CellResult], options: Namespace, folder: Path) -> None:
    """Measure the cells and add the repeats to their results."""
    num_cells = sum(result.error is None for result in results)
    count = f"{num_cells} cell{'' if num_cells == 1 else 's'}"
    repeat = f"{options.warmup} warmup, {options.updates} measured updates"
    notice(f"{count}, each {options.repeats} times: {repeat}; results are written to {folder}")
    with tempfile.TemporaryDirectory(prefix="hydrant-bench-", ignore_cleanup_errors=True) as cache:
        for result in measure_cells(results, options.repeats, options.updates, options.warmup, Path(cache)):
            outcome = result.error or f"{1e3 * result.seconds[-1]:.1f} ms per update"
            notice(f"repeat {len(result.repeats)} of {options.repeats}, {result.name}: {outcome}")


_FIXED_AXES = ("precision", "compile")
"""Keys that are axes even if they have one value, because they identify a cell's eager cell."""


def with_defaults(overrides: Sequence[str], *, on_gpu: bool) -> list[str]:
    """Return the overrides, preceded by defaults for the axes that they leave out."""
    choices = choices_in(overrides)
    defaults = {
        "precision": "fp32,tf32,bf16" if on_gpu else "fp32,bf16",
        "compile": "eager,default,blocks" + (",reduce_overhead,max_autotune" if on_gpu else ""),
    }
    # The overrides do not choose what is trained.
    if choices.keys().isdisjoint({"experiment", "data", "model", "task"}):
        defaults = {"experiment": "vit_fake" if on_gpu else "vit_tiny_fake"} | defaults
    return [*(f"{key}={values}" for key, values in defaults.items() if key not in choices), *overrides]


def plan_cells(overrides: Sequence[str]) -> list[CellResult]:
    """Return a cell for every combination of values and, before it, its eager cell. Each cell occurs once.

    A cell whose config is wrong has the status `refused`.

    Raises:
        ConfigError: the overrides cannot be read, or set a key that `bench` sets itself.
    """
    if "compile.cache_dir" in choices_in(overrides):
        reason = "each cell has its own empty folder, so that its first repeat compiles cold"
        raise ConfigError("compile.cache_dir", reason, remedy="leave the key out")
    grid = [override for override in overrides if group_of(override) != "tracker"]  # cells have no tracker
    combos = combinations([*grid, "tracker=local"])
    jobs = [choices_in(combo) for combo in combos]
    swept = [key for key in jobs[0] if len({job[key] for job in jobs}) > 1]
    axes = [*_FIXED_AXES, *(key for key in swept if key not in _FIXED_AXES)]
    cells: dict[tuple[str, ...], CellResult] = {}
    for combo in combos:
        plain = [override for override in combo if group_of(override) != "compile"]
        eager = (*plain, "compile=eager")
        is_eager = choices_in(combo)["compile"] == "eager"
        for cell in (eager,) if is_eager else (eager, tuple(combo)):
            if cell not in cells:
                choices = choices_in(cell)
                labels = {axis: choices[axis] for axis in axes if axis in choices}
                cells[cell] = _cell(labels, plain if cell == eager else combo)
                if cell == eager and cells[cell].error is None:
                    cells[cell] = CellResult(labels, uncompiled(cells[cell].config))
    return with_baselines(cells.values())


def _cell(labels: Mapping[str, str], overrides: Sequence[str]) -> CellResult:
    try:
        return CellResult(labels, check(compose(overrides)))
    except HydrantError as error:
        return CellResult(labels, {}, [Measurement(error=str(error), is_refused=True)])


def main(arguments: Sequence[str]) -> int:
    """Measure a grid and return the exit status."""
    flags = Flags("bench", repeats=3, updates=10, warmup=3, output=Path)
    options, overrides = flags.split(arguments)
    for flag, hint in {"repeats": PositiveInt, "updates": PositiveInt, "warmup": NotNegativeInt}.items():
        check_value(f"--{flag}", hint, getattr(options, flag))
    return run_bench(options, overrides)
