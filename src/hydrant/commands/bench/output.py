"""Write the results of `hydrant bench`: to the terminal, to files in its folder, to W&B.

They are a text table, CSV rows, a picture and scalars for trackers.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hydrant.commands.bench.results import CellResult
from hydrant.config.check import check
from hydrant.config.command_line import writing_to
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.config.resolvers import run_folder
from hydrant.errors import ConfigError
from hydrant.files.atomic_write import write_json
from hydrant.files.csv_text import as_csv
from hydrant.files.redaction import redacted
from hydrant.runs.environment import describe_environment
from hydrant.runs.folder import SUMMARY, missing_folders, remove_if_empty
from hydrant.terminal.answer import tell
from hydrant.terminal.console import notice, relative
from hydrant.terminal.text_table import align_columns
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.wandb import WandbTracker
from hydrant.training.distributed.world import World
from hydrant.training.plotting import Bar, draw_bars


class BenchOutput:
    """The output folder, files and W&B run of one `hydrant bench`. Empty folders are removed at the end."""

    def __init__(self, options: Namespace, overrides: Sequence[str], name: str | None) -> None:
        self.folder = options.output or Path(run_folder("outputs", name))
        self._options, self._overrides = options, overrides
        self._words = " ".join(redacted(list(overrides)))  # as shown in pictures and in W&B
        world = World.from_launcher()
        self._environment = describe_environment(world.device, world.world_size)
        self._new_folders = missing_folders(self.folder)
        self._exit_status = 1  # replaced by `write`
        self._tracker: WandbTracker | None = None

    def __enter__(self) -> BenchOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tracker is not None:
            self._tracker.finish(self._exit_status, {})
        remove_if_empty(self._new_folders)

    def open(self) -> None:
        """Create all folders and start the tracker, so that an error comes before the first measurement.

        Raises:
            ConfigError: a file cannot be written, the folder is in use, or the tracker's settings are wrong.
        """
        for file, content in ((SUMMARY, "a run"), ("bench.json", "results of bench")):
            if (self.folder / file).exists():
                key, remedy = "name" if self._options.output is None else "--output", "choose another folder"
                raise ConfigError(key, f"{self.folder} already contains {content}", remedy=remedy)
        for flag, path, suffix in (
            ("--output", self.folder / "bench.json", ".json"),
            ("--csv", self._options.csv, ".csv"),
            ("--png", self._options.png, ".png"),
        ):
            if path is not None:
                with writing_to(flag, path, suffix):
                    pass
        if self._options.wandb:
            self._tracker = self._start_tracker()

    def write(self, results: Sequence[CellResult], claims: Sequence[str], exit_status: int) -> None:
        """Write all files, log to W&B, and print the table (or the JSON) with the claims of the experiment."""
        file, picture = self.folder / "bench.json", self.folder / "bench.png"
        record = self._record(results)
        with writing_to("--output", file):
            write_json(file, record)
        for path in filter(None, (self.folder / "bench.csv", self._options.csv)):
            with writing_to("--csv", path):
                write_csv(results, path)
        for path in filter(None, (picture, self._options.png)):
            with writing_to("--png", path):
                draw(results, self._words, path)
        folder = relative(self.folder.absolute())
        claim_lines = "".join(f"claim: {claim}\n" for claim in claims)
        text = f"\n{table(results)}\n{LEGEND}\n{claim_lines}all measurements are in {folder}"
        tell(text, {"folder": folder, **record})
        self._exit_status = exit_status
        if self._tracker is not None:
            self._tracker.log({"num_updates": self._options.updates, **scalars(results)})
            self._tracker.table("bench/cells", *columns(results))
            self._tracker.image("bench/ranking", picture)
            notice(f"W&B: {self._tracker.describe()['path']}")

    def _record(self, results: Sequence[CellResult]) -> dict[str, Any]:
        return {
            "environment": self._environment,
            "num_cpus": os.cpu_count(),
            "num_threads": torch.get_num_threads(),
            "overrides": list(self._overrides),
            "repeats": self._options.repeats,
            "updates": self._options.updates,
            "warmup": self._options.warmup,
            "cells": [result.record() for result in results],
        }

    def _start_tracker(self) -> WandbTracker:
        settings = [override for override in self._overrides if override.startswith("tracker.")]
        config = check(compose(["tracker=wandb", *settings]))
        folder = self.folder.resolve()
        choices = {"overrides": self._words, **self._environment}
        identity = RunIdentity(folder, folder.name, "bench", "bench", ("bench",), choices)
        return instantiate(config, "tracker")(identity, 0)


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
    "MFU sheet": "{mfu_of_data_sheet:.1%}",
}
"""Title and format of each column of the table. A column that is empty in every row is left out."""

LEGEND = """
ms per update: median of the repeats' medians (range). speed-up: over the eager cell, repeat by repeat (range).
GiB: peak memory of tensors on CUDA; on a CPU that of the process, including compilation. cold s, warm s: seconds of
compilation in the first repeat and in those that reuse its code. MFU: three times the FLOPs of the forward pass per
second, relative to a large matrix product, the fastest of the repeats (sheet: to the data sheet).
"""

_MAX_NOTE = 120  # characters of a reason in the table


def table(results: Sequence[CellResult]) -> str:
    """Return a table with a line for each cell: its figures, or the reason why it has none."""
    axes, figures_of_all = _axes(results), [result.figures() for result in results]
    titles = [title for title, spec in _COLUMNS.items() if any(_format(spec, f) for f in figures_of_all)]
    lines = [[*axes, *titles]]
    for result, figures in zip(results, figures_of_all, strict=True):
        lines.append([result.labels.get(axis, "-") for axis in axes])
        if figures:
            lines[-1] += [_format(_COLUMNS[title], figures) or "-" for title in titles]
    texts = align_columns(lines, range(len(axes)))
    reasons = [(result.status, reason(result)) for result in results]
    notes = ["", *(f"  {status}: {_shorten(text)}" if text else "" for status, text in reasons)]
    return "\n".join(text + note for text, note in zip(texts, notes, strict=True))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_NOTE else f"{text[:_MAX_NOTE]}... (see bench.json)"


def reason(result: CellResult) -> str:
    """Return why a cell has no figures or no MFU, or ""."""
    if result.status == "ok" and (mfu := result.impossible_mfu) is not None:
        causes = "other load slowed the matrix product, or kernels save operations"
        return f"no MFU, because {mfu:.0%} cannot be true: {causes}"
    if result.status == "differs":
        difference, tolerance = f"{result.loss_difference:.2g}", f"{result.tolerance:g}"
        return f"its loss differs from eager's by a ratio of {difference}; rounding explains {tolerance}"
    if result.status == "not compared":
        return "its eager cell has no result"
    return result.error or ("" if result.repeats else "the command was stopped before")


def columns(results: Sequence[CellResult]) -> tuple[list[str], list[list[Any]]]:
    """Return the column titles and, for each cell, its labels, status, figures and reason."""
    axes, figures_of_all = _axes(results), [result.figures() for result in results]
    names = list(dict.fromkeys(name for figures in figures_of_all for name in figures))
    rows = [
        [*map(result.labels.get, axes), result.status, *map(figures.get, names), reason(result)]
        for result, figures in zip(results, figures_of_all, strict=True)
    ]
    return [*axes, "status", *names, "message"], rows


def write_csv(results: Sequence[CellResult], path: Path) -> None:
    """Write a line for each cell; missing figures are empty."""
    titles, rows = columns(results)
    path.write_text(as_csv([titles, *rows]), encoding="utf-8", newline="")


def draw(results: Sequence[CellResult], title: str, path: Path) -> None:
    """Write a PNG with a bar for each cell that has figures, the fastest first."""
    measured = [(result.figures(), result) for result in results if result.figures()]
    ranked = sorted(measured, key=lambda pair: pair[0]["update_ms"] or 0)
    bars = [
        Bar(
            label=" ".join(result.labels.values()),
            value=figures["update_ms"] or 0.0,
            low=figures["update_ms_min"] or 0.0,
            high=figures["update_ms_max"] or 0.0,
            note=_format("{update_ms:.1f} ms, {speedup:.2f}x", figures),
            is_marked=result.baseline is result,
        )
        for figures, result in ranked
    ]
    draw_bars(bars, path, title=title, unit="ms per update", marked="eager", plain="compiled")


def scalars(results: Sequence[CellResult]) -> dict[str, float]:
    """Return every figure of every cell under a metric key."""
    return {
        f"bench/{result.name.replace(' ', ',')}/{name}": value
        for result in results
        for name, value in result.figures().items()
        if value is not None
    }


def _axes(results: Sequence[CellResult]) -> list[str]:
    """Return the axes of the cell that has the most. Eager cells have no `compile.*` axes."""
    return max((list(result.labels) for result in results), key=len)


def _format(spec: str, figures: Mapping[str, Any]) -> str:
    """Return the content of a column, or "" if a figure is missing."""
    try:
        return spec.format(**figures)
    except (KeyError, TypeError):
        return ""
