"""A sweep of short runs that share one GPU (`hydra.launcher.jobs_per_gpu`), compared with one run at a time.

A run trains the default network on the digits for 60 epochs, about 1,300 updates, which a GPU finishes in a second or
two. The sweeps take turns. Each rate is counted from the end of the first jobs, because a sweep starts only once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks.commands import train_only
from benchmarks.figures import Figure, Item, Profile
from benchmarks.statistics import interval, paired
from benchmarks.sweep_rate import HAS_FINISHED, TRAIN, output_of, rate
from benchmarks.turns import in_turn, tables

GOALS = {"2 jobs on one GPU: rate, as a multiple of one job at a time": ">= 1.7"}
PROFILER = ("profiler=torch", "profiler.memory_snapshot=false", "eval_every=null", "save_every=null")


def measure(*, quick: bool) -> Iterator[Item]:
    """Measure the runs a minute with one, two and four jobs on the GPU."""
    counts, num_jobs, num_blocks = ((1, 2), 4, 1) if quick else ((1, 2, 4), 8, 2)
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, CUDA_VISIBLE_DEVICES=first_gpu):
        words = (
            "tracker=local",
            f"seed={','.join(map(str, range(num_jobs)))}",
            *(["duration=5ep"] if quick else []),
        )
        sweeps = {f"{n} at a time": partial(sweep, n, words, Path(folder)) for n in counts}
        rates = in_turn(sweeps, num_blocks)
        for title, values in rates.items():
            yield Figure(f"jobs, {title}", interval(values), "runs/min")
        figures = list[Figure]()
        for n in counts[1:]:
            ratio = paired(
                rates[f"{n} at a time"], rates["1 at a time"], lambda shared, alone: shared / alone
            )
            what = f"{n} jobs on one GPU: rate, as a multiple of one job at a time"
            figures.append(Figure(what, ratio, "x", GOALS.get(what)))
            yield figures[-1]
        if quick or any(figure.is_met is False for figure in figures):
            train_only(("duration=60", *PROFILER), Path(folder, "profiled"))
            yield Profile("one run", tables(Path(folder, "profiled")))


def sweep(at_once: int, words: tuple[str, ...], folder: Path) -> float:
    """Run a sweep and return its runs a minute."""
    launcher = (
        "hydra/launcher=local",
        f"hydra.launcher.num_jobs={at_once}",
        f"hydra.launcher.jobs_per_gpu={at_once}",
    )
    target = tempfile.mkdtemp(dir=folder)
    lines = output_of(TRAIN, "--multirun", f"hydra.sweep.dir={target}/sweep", *launcher, *words)
    return rate(lines, HAS_FINISHED, at_once=at_once)
