"""The tests that need a CUDA device and not the stub of one, with their seconds: several files at a time.

Without CUDA the stub takes the place of the GPU.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.commands import at_once, run
from benchmarks.figures import Failure, Figure, Item
from benchmarks.report import Cell
from benchmarks.turns import ROOT

SELECTED = "real_gpu or (cuda and not cuda(stub=True))"
"""Those marked `stub=True` compare with the CPU bit for bit, or count calls."""
PYTEST = (
    "-m",
    "pytest",
    "-m",
    SELECTED,
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "-o",
    "junit_family=xunit1",
    "-o",
    "junit_logging=system-err",
)
FILL_MEMORY = {"tests/training/prepare/test_micro_batch.py"}


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for the files that run side by side, and one for each that fills the GPU's memory."""
    marks = re.compile(r"pytest\.mark\.(cuda|real_gpu)")
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if marks.search(path.read_text())]
    files = {str(path.relative_to(ROOT)) for path in paths}
    beside = sorted(files - FILL_MEMORY, reverse=True)  # the longest comes early
    alone = {} if quick else {file: partial(test, file) for file in sorted(FILL_MEMORY)}
    return {"side by side": partial(at_once, test, beside[: 1 if quick else None]), **alone}


def test(file: str) -> Iterator[Item]:
    """Yield the seconds of each test of a file, or why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        done = run(*PYTEST, f"--junitxml={report}", file, cwd=ROOT, limit_seconds=300)
        if not report.exists():
            raise RuntimeError((done.stdout + done.stderr)[-1200:])
        cases = list(ElementTree.parse(report).iter("testcase"))
    for case in cases:
        name = f"`{case.get('name')}`"
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        if problem is not None:
            printed = case.findtext("system-err") or ""
            yield Failure(name, (problem.text or "")[-2000:] + printed[-2000:])
        else:
            note = "passed" if skipped is None else f"skipped: {skipped.get('message')}"
            yield Figure(name, float(case.get("time", 0)), "s", note=note)
