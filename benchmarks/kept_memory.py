"""What a run keeps of each update: objects and memory.

A run on the digits with a cosine schedule, clipping, loss and accuracy over the updates, its progress bar on a
terminal and a row every 50 updates in metrics.jsonl. Three times, each at equally many updates after a row, Python's
garbage collector counts its objects, `tracemalloc` the bytes that Python holds, the kernel the process's: after a
warm-up with a first such look, after few more updates, and after many more. A look leaves some 150 bytes itself; what
is kept is by how much many updates let grow more than few. Strings of numbers are as long as the numbers are: 0.1
bytes an update count as none, for the smallest object takes 16.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.turns import ROOT

CODE = """
import json, sys
from pathlib import Path
from benchmarks.contenders import kept
kept.main(json.loads(sys.argv[1]), Path(sys.argv[2]))
"""


def measure(*, quick: bool) -> list[Figure]:
    """What grows with the updates, in more than 10,000: multiples of 50 and of 64, as many batches are made at once."""
    few, many = (50, 100) if quick else (1600, 12800)
    with tempfile.TemporaryDirectory() as folder:
        _, first, second, third = looks([few, 2 * few, 3 * few, 3 * few + many], Path(folder))
    grown = {key: (third[key] - second[key]) - (second[key] - first[key]) for key in first}
    during = f"over {many - few:,} updates"
    told = f"{grown['bytes']:,} B {during}"
    return [
        Figure("objects kept", grown["objects"], "", "<= 0", during),
        Figure("bytes kept by Python, an update", grown["bytes"] / (many - few), "B", "<= 0.1", told),
        Figure("growth of the process", grown["resident"], "KiB", None, during),
    ]


def looks(at: list[int], folder: Path) -> list[dict[str, int]]:
    """What a run holds before these updates; its stdout is a terminal."""
    output, (reader, terminal) = folder / "found.json", pty.openpty()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, json.dumps(at), str(output)],
        cwd=folder, stdout=terminal, stderr=terminal,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    os.close(terminal)
    said = drained(reader)
    if process.wait():
        raise RuntimeError(f"the run failed:\n{said[-2000:]}")
    return json.loads(output.read_text())


def drained(reader: int) -> str:
    """What is written to a terminal until all have closed it."""
    said = b""
    with os.fdopen(reader, "rb", buffering=0) as file:
        while True:
            try:
                part = file.read(65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said = (said + part)[-4000:]
    return said.decode(errors="replace")
