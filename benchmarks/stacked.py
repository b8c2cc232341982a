"""A sweep as one program (`hydra/launcher=stacked`), compared with one process per run and with a run alone.

The sweep has 64 jobs, 8 learning rates with 8 seeds, of 50 updates of the default MLP on the digits with
`tracker=local`. A rate is that of the whole command, with its start and all files. Hydrant's sweeps use as many
processes as there are cores: two stacks of 32 lanes beside two runs at once. Lightning's runs share one process.

Updates are timed on one thread, without logs and files. The matrix products are those of the linear layers of all
lanes, forward and backward, as batched products and nothing else: an update of the stack cannot be faster. Lanes with
the same seed draw the same samples and dropout masks, so a stack draws them once; the sweep has 8 seeds.

The fixed cost of a lane is the time that a stack needs for one lane more, apart from its updates and evaluations: its
folder with all files, its checkpoint, its picture and its tracker. It is counted from stacks of 8 and of 64 lanes that
make a single update, so this update is part of it. On a machine that others use, the processor time, over all threads,
is less disturbed than the time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.figures import Figure, Item
from benchmarks.stack_updates import compare, ratio
from benchmarks.statistics import interval, paired
from benchmarks.sweep_rate import TRAIN, output_of
from benchmarks.turns import in_turn

SMALL = (
    "data=synthetic", "data.input_shape=[32]", "data.num_classes=10", "model.hidden=[64]", "model.dropout=0",
    "global_batch_size=8", "eval_every=null", "duration=100000",
)  # fmt: skip
DIGITS = ("eval_every=null", "duration=100000")
REMAINDER = (
    "The goal was set when a sweep with one process per run took 48 to 52 s for these jobs (commit 39722fc, one "
    "job after the other; 30 to 34 s with hydra/launcher=local). A stacked sweep, measured in turn with it, takes "
    "7 to 8 s: 6.6 to 7.1 times its rate (3.8 to 5.0). The jobs of hydra/launcher=local take half of the time "
    "that they took then."
)
STACKED, LOCAL, LIGHTNING = "stacked", "one process per run", "Hydra's multirun of Lightning"


def cells(*, quick: bool) -> dict[str, Callable[[], Iterable[Item]]]:
    """Return the parts of the benchmark by title."""
    return {
        "updates": partial(updates, quick=quick),
        "fixed cost": partial(fixed_cost, quick=quick),
        "sweep": partial(sweep, quick=quick),
    }


def sweep(*, quick: bool) -> Iterator[Item]:
    """Measure the jobs a minute of the sweeps."""
    num_rates, num_seeds = (1, 4) if quick else (8, 8)
    rates = ",".join(f"{1e-4 * 2**n:.4g}" for n in range(num_rates))
    seeds = ",".join(map(str, range(num_seeds)))
    words = ("duration=50", "tracker=local", f"optimizer.lr={rates}", f"seed={seeds}")
    lightning = ("-m", "benchmarks.contenders.lightning_sweep", "--multirun", f"lr={rates}", f"seed={seeds}")
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            STACKED: (TRAIN, "--multirun", "hydra/launcher=stacked", *words),
            LOCAL: (TRAIN, "--multirun", "hydra/launcher=local", *words),
            LIGHTNING: (*lightning, "hydra.job.chdir=true"),
        }
        count = num_rates * num_seeds
        trials = {title: partial(jobs_a_minute, c, count, Path(folder)) for title, c in commands.items()}
        measured = in_turn(trials, 1 if quick else 3)
    for title, values in measured.items():
        yield Figure(f"{count} jobs: {title}", interval(values), "jobs/min")
    for title, goal in ((LOCAL, ">= 5"), (LIGHTNING, ">= 3")):
        faster = paired(measured[STACKED], measured[title], lambda stacked, other: stacked / other)
        remainder = REMAINDER if title == LOCAL else ""
        yield Figure(
            f"a stacked sweep, against {title}", faster, "x", None if quick else goal, remainder=remainder
        )


def jobs_a_minute(command: tuple[str, ...], count: int, folder: Path) -> float:
    """Run a sweep in a new folder."""
    start = time.perf_counter()
    output_of(*command, f"hydra.sweep.dir={tempfile.mkdtemp(dir=folder)}/sweep")
    return 60 * count / (time.perf_counter() - start)


def updates(*, quick: bool) -> Iterator[Item]:
    """Measure the updates of 64 lanes on one thread."""
    num_lanes, num_blocks, block_size = (4, 2, 2) if quick else (64, 15, 10)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for title, words, num_seeds in (
            ("MLP 32-64-10, batches of 8", SMALL, num_lanes),
            ("the default MLP on the digits, 8 seeds", DIGITS, 8),
            ("the default MLP on the digits, each lane with a seed of its own", DIGITS, num_lanes),
        ):
            seconds = compare(words, num_lanes, num_seeds, num_blocks=num_blocks, block_size=block_size)
            name = f"{title}: an update of {num_lanes} lanes"
            yield Figure(name, interval([1e3 * value for value in seconds["stack"]]), "ms")
            yield Figure(f"{title}: of a run alone", interval([1e3 * v for v in seconds["alone"]]), "ms")
            if words is SMALL:
                yield ratio(f"{name}, of one of a run alone", seconds, "<= 8")
            else:
                yield ratio(f"{title}: a lane's part, of a run alone", seconds, "<= 0.75", parts=num_lanes)
            near = paired(seconds["products"], seconds["stack"], lambda products, stack: products / stack)
            yield Figure(f"{title}: matrix products, of the stack's update", near, "x")
    finally:
        torch.set_num_threads(num_threads)


def fixed_cost(*, quick: bool) -> Iterator[Item]:
    """Measure what one lane more costs."""
    few, many, num_blocks = (2, 4, 1) if quick else (8, 64, 3)
    for title, num_rates in (("8 learning rates", 8), ("each with a learning rate of its own", many)):
        words = ("-m", "benchmarks.contenders.stack_of_runs", str(num_rates), *[str(few), str(many)])
        costs = {"": list[float](), ", processor time": list[float]()}
        for _ in range(num_blocks):
            lines = [line.split() for _, line in output_of(*words)]
            of_few, of_many = (line[1:] for line in lines if line[0] == "seconds")
            for values, less, more in zip(costs.values(), of_few, of_many, strict=True):
                values.append(1e3 * (float(more) - float(less)) / (many - few))
        for kind, values in costs.items():
            goal = None if quick or kind else "<= 40"
            yield Figure(f"fixed cost of a lane, {title}{kind}", interval(values), "ms", goal)
