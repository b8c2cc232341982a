"""What a run keeps of each update: objects and memory.

A run on the digits with a cosine schedule, clipping, loss and accuracy over the updates, its progress bar on a
terminal and a row every 50 updates in metrics.jsonl. After a warm-up, and at equally many updates after a row,
Python's garbage collector counts its objects, `tracemalloc` the bytes that Python holds, the kernel the process's.
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

REMAINDER = (
    "About 50 bytes for every row stay where the meter brings its scalars together by torch.stack; on its own the same "
    "call keeps nothing, and why it does here is not found."
)


def measure(*, quick: bool) -> list[Figure]:
    """Growth of each in more than 10,000 updates: a multiple of 50 and of 64, as many batches are made at once."""
    warmup, num_updates = (50, 100) if quick else (1600, 11200)
    with tempfile.TemporaryDirectory() as folder:
        before, after = looks([warmup, warmup + num_updates], Path(folder))
    grown = {key: after[key] - before[key] for key in before}
    during = f"over {num_updates:,} updates"
    told = f"{grown['bytes']:,} B {during}"
    return [
        Figure("objects kept", grown["objects"], "", "<= 0", during, REMAINDER),
        Figure("bytes kept by Python, an update", grown["bytes"] / num_updates, "B", "<= 0", told, REMAINDER),
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
