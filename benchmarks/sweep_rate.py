"""Short runs in a sweep, against a process for each run and against Hydra's own multirun of a Lightning script.

A run is 50 updates on the digits with an evaluation before and after, a checkpoint and its files. How many a minute is
counted from the end of the first run on, for the start of a sweep is paid once; a process of its own is a whole
`python train.py`. Lightning's runs share one process, and write a CSV file and a checkpoint; they are counted from the
start of the second one on. The start of a job is the time from when the sweep announces it to its first row, before
its first update.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import ROOT

Lines = list[tuple[float, str]]
"""What a command says, each line with the time it came at."""

TRAIN, OWN = str(ROOT / "train.py"), ("duration=50", "tracker=local")
SIDE_BY_SIDE = ("hydra/launcher=local", "hydra.launcher.num_jobs=2")
ALONE = "one process per run"
REMAINDER = (
    "A job still makes all that a run leaves. Of a third of a second, on two slow shared cores, it takes 0.04 to "
    "compose, 0.1 to start its process and build the run, 0.1 for the updates and two evaluations, and 0.1 for the "
    "checkpoint, schedule.png and the end of the process. What it is compared with, a whole `python train.py`, takes a "
    "second less since its imports go without the garbage collector."
)


def measure(*, quick: bool) -> list[Figure]:
    """Runs a minute of each, and how ours compare."""
    num_blocks, num_runs = (1, 4) if quick else (7, 4)
    rates: dict[str, list[float]] = {}
    starts = list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_blocks):
            found, own = block(Path(folder, str(number)), num_runs)
            starts.append(own)
            for title, rate in found.items():
                rates.setdefault(title, []).append(rate)
    figures = [Figure(title, interval(own), "runs/min") for title, own in rates.items()]
    for title in ("a sweep", "a sweep, two jobs at once"):
        for other, goal, left in ((ALONE, ">= 10", REMAINDER), ("Hydra's multirun of Lightning", None, "")):
            ratio = paired(rates[title], rates[other], lambda ours, theirs: ours / theirs)
            figures.append(Figure(f"{title}, against {other}", ratio, "x", goal, "", left))
    return [*figures, Figure("start of a job after the first", interval(starts), "s", "<= 0.3")]


def block(folder: Path, num_runs: int) -> tuple[dict[str, float], float]:
    """(runs a minute by contender, seconds that a job of the sweep takes to start)."""
    seeds = f"seed={','.join(map(str, range(num_runs)))}"
    sweep, beside, peer = (folder / name for name in ("sweep", "beside", "peer"))
    own = said(TRAIN, "--multirun", f"hydra.sweep.dir={sweep}", seeds, *OWN)
    two = said(TRAIN, "--multirun", f"hydra.sweep.dir={beside}", seeds, *OWN, *SIDE_BY_SIDE)
    began = time.time()
    said(TRAIN, f"hydra.run.dir={folder / 'alone'}", *OWN)
    alone = 60 / (time.time() - began)
    module = ("-m", "benchmarks.contenders.lightning_sweep")
    lightning = said(*module, "--multirun", f"hydra.sweep.dir={peer}", "hydra.job.chdir=true", seeds)
    return {
        "a sweep": rate(own, r"finished: "),
        "a sweep, two jobs at once": rate(two, r"job \d+: finished", at_once=2),
        ALONE: alone,
        "Hydra's multirun of Lightning": rate(lightning, r".*#\d+ : seed=", at_once=2),
    }, start_seconds(own, sweep)


def rate(lines: Lines, pattern: str, at_once: int = 1) -> float:
    """A minute, of what these lines tell of, after the first ones that ran at once."""
    times = [when for when, line in lines if re.match(pattern, line)][at_once - 1 :]
    return 60 * (len(times) - 1) / (times[-1] - times[0])


def start_seconds(lines: Lines, sweep: Path) -> float:
    """Of the jobs after the first, the mean."""
    announced = {match[1]: when for when, line in lines if (match := re.match(r"job \d+: (\S+)$", line))}
    rows = {name: (sweep / name / "metrics.jsonl").read_text().splitlines() for name in announced}
    return mean(json.loads(rows[name][0])["time"] - announced[name] for name in list(announced)[1:])


def said(*words: str) -> Lines:
    """What a Python command says until it ends."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = [(time.time(), line.rstrip()) for line in process.stdout]
    if process.returncode:
        raise RuntimeError("\n".join(line for _, line in lines[-20:]))
    return lines
