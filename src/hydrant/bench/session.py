"""One call of the command: the cells are measured in turn, and told in the end."""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from hydrant.bare import check_horizon
from hydrant.bench.grid import Planned, completed, plan
from hydrant.bench.output import Output
from hydrant.errors import ConfigError, HydrantError
from hydrant.isolation import Stopped
from hydrant.measuring import Cell, Measurement, Row, measure_grid, name_of, rows_of


def run(options: Namespace, words: Sequence[str]) -> int:
    """Measure the grid that the words make; the exit status.

    Raises:
        ConfigError: no cell can run, or the results cannot be written.
        Stopped: a signal arrived; what was measured until then is written.
    """
    words = completed(words, on_gpu=torch.cuda.is_available())
    cells = plan(words)
    rows = rows_of([(cell.labels, cell.baseline) for cell in cells])
    for cell, row in zip(cells, rows, strict=True):
        if isinstance(cell.config, HydrantError):
            row.repeats.append(Measurement(error=str(cell.config), is_refused=True))
    _check_any_runs(rows)
    configs = [cell.config for cell in cells if not isinstance(cell.config, HydrantError)]
    claims = list(dict.fromkeys(config["claim"] for config in configs if config["claim"] is not None))
    check_horizon(configs[0], options.warmup + options.updates)
    with Output(options, words, configs[0]["name"]) as output:
        output.open()
        try:
            _measure(cells, rows, options, output.folder)
        except (Stopped, KeyboardInterrupt) as request:  # the latter: Ctrl-C twice
            if any(row.repeats and row.status != "refused" for row in rows):
                output.write(rows, claims, request.exit_status if isinstance(request, Stopped) else 130)
            raise
        _check_any_runs(rows)
        exit_status = int(any(row.status in ("failed", "differs", "not compared") for row in rows))
        output.write(rows, claims, exit_status)
        return exit_status


def _check_any_runs(rows: Sequence[Row]) -> None:
    if all(row.status == "refused" for row in rows):
        raise ConfigError("", f"{rows[0].error} [{rows[0].name}; none of {len(rows)} cells can run]")


def _measure(cells: Sequence[Planned], rows: Sequence[Row], options: Namespace, folder: Path) -> None:
    """Fill the rows."""
    planned = [Cell(c.labels, c.config) for c in cells if not isinstance(c.config, HydrantError)]
    row_of = {row.name: row for row in rows}
    updates = f"{options.warmup} + {options.updates} updates"
    count = f"{len(planned)} cell{'' if len(planned) == 1 else 's'}"
    _progress(f"{count}, {options.repeats} times {updates} each; results go to {folder}")
    with tempfile.TemporaryDirectory(prefix="hydrant-bench-", ignore_cleanup_errors=True) as cache_dir:
        for cell, measurement in measure_grid(
            planned,
            repeats=options.repeats,
            num_updates=options.updates,
            warmup=options.warmup,
            cache_dir=Path(cache_dir),
        ):
            row = row_of[name_of(cell.labels)]
            row.repeats.append(measurement)
            gave = measurement.error or f"{1e3 * row.seconds[-1]:.1f} ms per update"
            _progress(f"repeat {len(row.repeats)} of {options.repeats}, {row.name}: {gave}")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
