"""Run `hydrant bench`: plan a grid, measure its cells, write the results."""

from __future__ import annotations

import signal
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from hydrant.commands.bench.cells import plan_cells, with_defaults
from hydrant.commands.bench.measure import measure_cells
from hydrant.commands.bench.output import BenchOutput
from hydrant.commands.bench.results import CellResult
from hydrant.commands.isolated import check_num_updates
from hydrant.errors import ConfigError
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
