"""Several ranks: measured on this machine, and the collectives of up to 8,192 ranks, simulated.

Measured: an update of a network with 2.4 million weights by Hydrant with DDP on 1, 2 and 4 gloo ranks, 64 samples each.
The inputs of the cost model are the time of an update without communication, with one rank per core, and the times of
all_reduce for three sizes. From them it predicts the time of an update with communication, also where ranks share a
core. Simulated: with torch's fake process group, a vision transformer is wrapped for 8, 64, 1,024 and 8,192 ranks by
DDP, FSDP and HSDP. The collectives of an update are compared with the model's formulas, one by one.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from statistics import fmean
from typing import Any

from benchmarks.cost_model import ddp_update, fitted_link, in_turn, ring_seconds
from benchmarks.figures import Figure
from benchmarks.on_paper import CAP, HOST_BYTES, WORLDS
from benchmarks.statistics import interval, paired
from benchmarks.turns import child_environment, race

NUM_RANKS = (2, 4)
SIZES = (HOST_BYTES, 2**21, 2**23)  # bytes
SHAPES = [(1024, 256), (1024,), (1024, 1024), (1024,), (1024, 1024), (1024,), (10, 1024), (10,)]


def measure(*, quick: bool) -> list[Figure]:
    """Compare measured with predicted updates, and issued collectives with the formulas."""
    sizes = {"num_blocks": 2 if quick else 11, "block_size": 1 if quick else 10}
    return [*measured(**sizes), *simulated(WORLDS[:1] if quick else WORLDS)]


def measured(num_blocks: int, block_size: int) -> list[Figure]:
    """Measure updates on this machine and compare them with predictions."""
    runs = (1, *NUM_RANKS)
    contenders = {f"run {n}": {"contender": "hydrant_ranks", "num_ranks": n} for n in runs}
    contenders |= {
        f"parts {n}": {"contender": "rank_parts", "num_ranks": n, "sizes": SIZES} for n in NUM_RANKS
    }
    seconds, results = race(contenders, num_blocks=num_blocks, block_size=block_size, num_warmup=block_size)
    figures = list[Figure]()
    for n in runs:
        updates = [block / block_size for block in seconds[f"run {n}"]]
        same = results[f"run {n}"]["digest"] == results["run 1"]["digest"]
        note = "weights: those of one rank, bit for bit" if n > 1 and same else ""
        title = f"an update on {n} rank{'s' * (n > 1)}"
        figures.append(Figure(title, interval([s * 1e3 for s in updates]), "ms", note=note))
        if n > 1:
            ratio = paired(predicted(n, results, block_size), updates, lambda model, real: model / real)
            figures.append(Figure(f"{n} ranks: predicted / measured", ratio, "x"))
            error = abs(ratio.median - 1)
            figures.append(Figure(f"{n} ranks: the prediction is off by", error, "", "<= 0.2"))
    return figures


def predicted(num_ranks: int, results: dict[str, dict[str, Any]], block_size: int) -> list[float]:
    """Predict the seconds of an update for each block, from the parts that were measured in it."""
    num_cores = len(os.sched_getaffinity(0))
    computes = per_block(results[f"parts {NUM_RANKS[0]}"]["seconds"]["compute"], block_size)
    sums = [per_block(results[f"parts {num_ranks}"]["seconds"][str(size)], block_size) for size in SIZES]
    collectives = [*ddp_update(SHAPES, num_ranks, CAP), *ddp_update([(HOST_BYTES // 4,)], num_ranks, CAP)]
    predictions = list[float]()
    for compute, *sum_seconds in zip(computes, *sums, strict=True):
        link = fitted_link(SIZES, sum_seconds, num_ranks)
        exchanges = [ring_seconds(collective, link) for collective in collectives]
        predictions.append(in_turn(compute, math.ceil(num_ranks / num_cores), exchanges))
    return predictions


def per_block(seconds: list[float], block_size: int) -> list[float]:
    """Return the mean of each block, without the first block (warm-up) and the one update after the last."""
    return [fmean(seconds[at : at + block_size]) for at in range(block_size, len(seconds) - 1, block_size)]


def simulated(worlds: tuple[int, ...]) -> list[Figure]:
    """Compare the collectives of torch's fake process group with the formulas."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.contenders.fake_ranks", json.dumps(worlds)]
    done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, check=True)
    figures = list[Figure]()
    for case in json.loads(done.stdout.splitlines()[-1]):
        issued, model = (Counter(map(tuple, case[key])) for key in ("issued", "predicted"))
        title = f"parallel={case['option']}, {case['num_ranks']:,} ranks: collectives that differ from the model's"
        num_bytes = sum(size for _, size, _ in case["issued"])
        note = f"of {issued.total()}, {num_bytes / 1e6:,.1f} MB"
        figures.append(Figure(title, ((issued - model) + (model - issued)).total(), "", "= 0", note))
    return figures
