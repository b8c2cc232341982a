"""The tests that need a CUDA device and not the stub of one, by file. Several files run at a time.

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
    """Yield how many tests of a file passed, and why others did not."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        done = run(*PYTEST, f"--junitxml={report}", file, cwd=ROOT, limit_seconds=300)
        if not report.exists() or done.returncode not in (0, 1, 5):  # 1: tests failed; 5: none is selected
            raise RuntimeError((done.stdout + done.stderr)[-1200:])
        cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = {f"skipped: {mark.get('message')}" for case in cases for mark in case.iter("skipped")}
    passed = [
        case for case in cases if all(case.find(mark) is None for mark in ("failure", "error", "skipped"))
    ]
    seconds = sum(float(case.get("time", 0)) for case in cases)
    yield Figure(f"{file}: passed", len(passed), "", note="; ".join([f"{seconds:.0f} s", *sorted(skipped)]))
    for case in cases:
        for problem in [*case.iter("failure"), *case.iter("error")]:
            printed = case.findtext("system-err") or ""
            yield Failure(f"`{case.get('name')}`", ((problem.text or "")[-2000:] + printed[-2000:]).strip())
