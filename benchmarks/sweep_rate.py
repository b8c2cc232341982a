"""Short runs in a sweep, compared with one process per run and with Hydra's own multirun of a Lightning script.

A run is 50 updates on the digits with an evaluation before and after, a checkpoint and its files. The rate of a sweep
is counted from the end of its first run, because a sweep starts only once. "One process per run" is a whole `python
train.py`. Lightning's runs share one process and write a CSV file and a checkpoint; their rate is counted from the
start of the second run. The start of a job is the time from the sweep's announcement of the job to the job's first
metrics row, which comes before its first update.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import ROOT, child_environment

Lines = list[tuple[float, str]]
"""The output of a command: (time of arrival, line)."""

TRAIN, WORDS = str(ROOT / "train.py"), ("duration=50", "tracker=local")
SEEDS = "seed=0,1,2,3"
SIDE_BY_SIDE = ("hydra/launcher=local", "hydra.launcher.num_jobs=2")
HAS_FINISHED = r"job \d+: \S+ has finished"
ALONE, LIGHTNING = "one process per run", "Hydra's multirun of Lightning"
REMAINDER = (
    "A job still writes all files of a run. On two slow shared cores it takes a third of a second: 0.04 s to compose, "
    "0.1 s to start its process and build the run, 0.1 s for the updates and two evaluations, and 0.1 s for the "
    "checkpoint, schedule.png and the end of the process. A whole `python train.py`, with which it is compared, became "
    "a second faster when imports began to pause the garbage collector."
)


def measure(*, quick: bool) -> list[Figure]:
    """Measure runs a minute of each contender, and their ratios to Hydrant's sweeps."""
    rates, starts = dict[str, list[float]](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if quick else 7):
            block_rates, start = block(Path(folder, str(number)))
            starts.append(start)
            for title, rate in block_rates.items():
                rates.setdefault(title, []).append(rate)
    figures = [Figure(title, interval(values), "runs/min") for title, values in rates.items()]
    for title in ("a sweep", "a sweep, two jobs at once"):
        for other, goal in ((ALONE, ">= 10"), (LIGHTNING, None)):
            ratio = paired(rates[title], rates[other], lambda sweep, peer: sweep / peer)
            figures.append(Figure(f"{title}, against {other}", ratio, "x", goal, remainder=REMAINDER))
    return [*figures, Figure("start of a job after the first", interval(starts), "s", "<= 0.3")]


def block(folder: Path) -> tuple[dict[str, float], float]:
    """Return (runs a minute by contender, seconds that a job of the sweep takes to start)."""
    sweep, two_at_once, peer = (folder / name for name in ("sweep", "two_at_once", "peer"))
    one = output_of(TRAIN, "--multirun", f"hydra.sweep.dir={sweep}", SEEDS, *WORDS)
    two = output_of(TRAIN, "--multirun", f"hydra.sweep.dir={two_at_once}", SEEDS, *WORDS, *SIDE_BY_SIDE)
    start = time.time()
    output_of(TRAIN, f"hydra.run.dir={folder / 'alone'}", *WORDS)
    alone = 60 / (time.time() - start)
    module = ("-m", "benchmarks.contenders.lightning_sweep")
    lightning = output_of(*module, "--multirun", f"hydra.sweep.dir={peer}", "hydra.job.chdir=true", SEEDS)
    return {
        "a sweep": rate(one, r"finished: "),
        "a sweep, two jobs at once": rate(two, HAS_FINISHED, at_once=2),
        ALONE: alone,
        LIGHTNING: rate(lightning, r".*#\d+ : seed=", at_once=2),
    }, start_seconds(one, sweep)


def rate(lines: Lines, pattern: str, at_once: int = 1) -> float:
    """Return the matching lines a minute, counted from the last of the first `at_once` ones."""
    times = [arrival for arrival, line in lines if re.match(pattern, line)][at_once - 1 :]
    return 60 * (len(times) - 1) / (times[-1] - times[0])


def start_seconds(lines: Lines, sweep: Path) -> float:
    """Return the mean seconds from announcement to first row, over all jobs but the first."""
    matches = ((arrival, re.match(r"job \d+: (\S+)$", line)) for arrival, line in lines)
    announced = {match[1]: arrival for arrival, match in matches if match}
    rows = {name: (sweep / name / "metrics.jsonl").read_text().splitlines() for name in announced}
    return mean(json.loads(rows[name][0])["time"] - announced[name] for name in list(announced)[1:])


def output_of(*words: str) -> Lines:
    """Run a Python command and return its output.

    Raises:
        RuntimeError: The command failed.
    """
    environment = child_environment() | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = [(time.time(), line.rstrip()) for line in process.stdout]
    if process.returncode:
        raise RuntimeError("\n".join(line for _, line in lines[-20:]))
    return lines
