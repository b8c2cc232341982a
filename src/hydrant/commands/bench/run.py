"""Run `hydrant bench`: plan a grid, measure its cells, write the results.

A cell is one config: a combination of the swept values. Each has an eager cell, with which it is compared.
"""

from __future__ import annotations

import signal
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from hydrant.commands.bench.measure import measure_cells
from hydrant.commands.bench.output import BenchOutput
from hydrant.commands.bench.results import CellResult, Measurement, group_of, with_baselines
from hydrant.commands.isolated import check_num_updates
from hydrant.config.check import check
from hydrant.config.compose import combinations, compose, uncompiled
from hydrant.config.error_messages import HYDRA_ERRORS, explain
from hydrant.errors import ConfigError, HydrantError
from hydrant.runs.folder import choices_in
from hydrant.signals import Stopped
from hydrant.terminal.console import notice


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
    with BenchOutput(options, overrides, configs[0]["name"]) as output:
        output.open()
        try:
            _measure_all(results, options, output.folder)
        except (Stopped, KeyboardInterrupt) as stop:
            if any(result.repeats and result.status != "refused" for result in results):
                exit_status = stop.exit_status if isinstance(stop, Stopped) else 128 + signal.SIGINT
                output.write(results, claims, exit_status)
            raise
        _check_any_can_run(results)
        exit_status = int(any(result.status in ("failed", "differs", "not compared") for result in results))
        output.write(results, claims, exit_status)
        return exit_status


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
    with tempfile.TemporaryDirectory(prefix="hydrant-bench-", ignore_cleanup_errors=True) as cache_dir:
        for result in measure_cells(
            results,
            repeats=options.repeats,
            num_updates=options.updates,
            warmup=options.warmup,
            cache_dir=Path(cache_dir),
        ):
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
    axes = _axes([choices_in(combo) for combo in combos])
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


def _axes(jobs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the fixed axes and the other keys in which the jobs differ."""
    swept = [key for key in jobs[0] if len({job[key] for job in jobs}) > 1]
    return [*_FIXED_AXES, *(key for key in swept if key not in _FIXED_AXES)]


def _cell(labels: Mapping[str, str], overrides: Sequence[str]) -> CellResult:
    try:
        return CellResult(labels, check(compose(overrides)))
    except (HydrantError, *HYDRA_ERRORS) as error:
        return CellResult(labels, {}, [Measurement(error=str(explain(error)), is_refused=True)])
