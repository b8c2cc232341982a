"""Memory that updates leave behind: a test for leaks.

A run on the digits with a cosine schedule, clipping, means of loss and accuracy, a progress bar on a terminal, and a
row every 50 updates in metrics.jsonl. At some updates, always equally many after a row, it records the number of
objects that Python's garbage collector tracks, the bytes that `tracemalloc` counts, and the resident memory of the
process. The first record is part of the warm-up; the next three are a few updates, a few more updates, and many more
updates apart. A record itself leaves about 150 bytes, so the result is how much more memory grows over many updates
than over few. Less than 0.1 bytes per update count as nothing: the smallest object takes 16 bytes, and strings of
update numbers grow with their digits. The widths of texts that rich keeps, at most 4,096, do not count.
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
from benchmarks.turns import child_environment

# Not `python -m`, because the config's `_target_` imports the module by its name, a second time.
CODE = """
import json, sys
from pathlib import Path
from benchmarks.contenders import kept
kept.main(json.loads(sys.argv[1]), Path(sys.argv[2]))
"""

REMAINDER = (
    "A few hundred strings that torch keeps for clipping and means, which grow in number ever more slowly; a loop of "
    "plain torch keeps them too."
)


def measure(*, quick: bool) -> list[Figure]:
    """Measure the growth over more than 10,000 updates.

    The counts are multiples of 50, the log interval, and of 64, the number of batches that are made at once.
    """
    few, many = (50, 100) if quick else (1600, 12800)
    with tempfile.TemporaryDirectory() as folder:
        _, first, second, third = snapshots([few, 2 * few, 3 * few, 3 * few + many], Path(folder))
    growth = {key: (third[key] - second[key]) - (second[key] - first[key]) for key in first}
    during = f"over {many - few:,} updates"
    note = f"{growth['bytes']:,} B {during}"
    return [
        Figure("objects kept", growth["objects"], "", "<= 0", during),
        Figure(
            "bytes kept by Python, an update", growth["bytes"] / (many - few), "B", "<= 0.1", note, REMAINDER
        ),
        Figure("growth of the process", growth["resident"], "KiB", None, during),
    ]


def snapshots(updates: list[int], folder: Path) -> list[dict[str, int]]:
    """Run a training on a terminal and return its memory before these updates."""
    output, (reader, terminal) = folder / "snapshots.json", pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, json.dumps(updates), str(output)],
        cwd=folder, stdout=terminal, stderr=terminal, env=child_environment(),
    )  # fmt: skip
    os.close(terminal)
    printed = read_until_closed(reader)
    if process.wait():
        raise RuntimeError(f"the run failed:\n{printed[-2000:]}")
    return json.loads(output.read_text())


def read_until_closed(reader: int) -> str:
    """Read from a terminal until its other end is closed. Return the end of the output."""
    printed = b""
    with os.fdopen(reader, "rb", buffering=0) as file:
        while True:
            try:
                part = file.read(65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            printed = (printed + part)[-4000:]
    return printed.decode(errors="replace")
