"""The tests that need a CUDA device: `pytest -m "cuda or real_gpu"`, with their seconds.

Without CUDA they are skipped.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.commands import run
from benchmarks.figures import Failure, Figure, Item
from benchmarks.report import Cell
from benchmarks.turns import ROOT

PYTEST = (
    "-m",
    "pytest",
    "-m",
    "cuda or real_gpu",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "-o",
    "junit_family=xunit1",
)


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each file that has such tests."""
    marks = re.compile(r"pytest\.mark\.(cuda|real_gpu)")
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if marks.search(file.read_text())]
    return {str(file.relative_to(ROOT)): partial(test, file) for file in files[: 1 if quick else None]}


def test(file: Path) -> Iterator[Item]:
    """Yield the seconds of each test of a file, or why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        done = run(*PYTEST, f"--junitxml={report}", str(file), cwd=ROOT, limit_seconds=400)
        if not report.exists():
            raise RuntimeError((done.stdout + done.stderr)[-1200:])
        cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        name = f"`{case.get('name')}`"
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        if problem is not None:
            yield Failure(name, (problem.text or "")[-1200:])
        else:
            note = "passed" if skipped is None else f"skipped: {skipped.get('message')}"
            yield Figure(name, float(case.get("time", 0)), "s", note=note)
