"""The file with the results of benchmarks. It is rewritten after every figure, so an interruption loses none."""

from __future__ import annotations

import importlib
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Failure, Figure, Item, Profile

Cell = Callable[[], Iterable[Item]]
"""A part of a benchmark that is measured by itself. If it fails, the others are measured nevertheless."""

MEASURED, FAILED = "measured", "failed"
"""The states of a cell; None: not yet measured."""

_SECTIONS = {Figure: "figures", Failure: "failures", Profile: "profiles"}
_IDENTITY = ("gpu", "cpu", "torch", "git_commit", "quick")


class Report:
    """The results of some benchmarks.

    If the file exists and is of the same machine, torch and commit, what it has is kept and only the rest is measured.
    Otherwise, and if the commit is unknown or the code has changes, the file is begun anew.
    """

    def __init__(self, path: Path, measured: Mapping[str, Any]) -> None:
        self._path = path
        self._results: dict[str, Any] = {"measured": dict(measured), "benchmarks": {}}
        if path.exists() and measured["git_commit"] and not measured["git_dirty"]:
            before = json.loads(path.read_text(encoding="utf-8"))
            if all(before["measured"].get(key) == measured[key] for key in _IDENTITY):
                self._results = before

    def measure(self, name: str, *, quick: bool, cells: str = "") -> dict[str, Any]:
        """Measure the cells of a benchmark that the file lacks and whose title `cells`, a regular expression, finds.

        Return its results.
        """
        module = importlib.import_module(f"benchmarks.{name}")
        doc, every = (module.__doc__ or name).strip(), cells_of(name, quick=quick)
        empty = {"doc": doc, "seconds": 0, "cells": {}, **{section: [] for section in _SECTIONS.values()}}
        benchmark = self._results["benchmarks"].setdefault(name, empty)
        benchmark["cells"] = {title: benchmark["cells"].get(title) for title in every}
        for title, cell in every.items():
            if benchmark["cells"][title] != MEASURED and re.search(cells, title):
                self._measure_cell(benchmark, title, cell)
        return benchmark

    def _measure_cell(self, benchmark: dict[str, Any], title: str, cell: Cell) -> None:
        for section in _SECTIONS.values():
            benchmark[section] = [row for row in benchmark[section] if row["cell"] != title]
        benchmark["cells"][title] = None
        start, state = time.monotonic(), MEASURED
        for item in _attempt(title, cell):
            benchmark[_SECTIONS[type(item)]].append({"cell": title, **item.as_dict()})
            state = FAILED if isinstance(item, Failure) else state
            self.write()
        benchmark["cells"][title] = state
        benchmark["seconds"] += round(time.monotonic() - start)
        self.write()

    def write(self) -> None:
        """Replace the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(self._results, indent=2) + "\n", encoding="utf-8")
        scratch.replace(self._path)


def cells_of(name: str, *, quick: bool) -> dict[str, Cell]:
    """Return the cells of a benchmark by title. One that has only `measure` is a single cell."""
    module = importlib.import_module(f"benchmarks.{name}")
    return (
        module.cells(quick=quick)
        if hasattr(module, "cells")
        else {name: partial(module.measure, quick=quick)}
    )


def _attempt(title: str, cell: Cell) -> Iterable[Item]:
    """Yield what a cell yields, and as the last item why it failed, if it did."""
    try:
        yield from cell()
    except Exception as error:  # whatever happens in one cell, the others are measured
        traceback.print_exc()
        yield Failure(title, f"{type(error).__name__}: {error}"[-1500:])
