"""Time stacks of runs with all their files but hardly any training:    stack_of_runs.py LEARNING_RATES LANES..."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from pathlib import Path

import torch

import hydrant
from hydrant.extensions.stacked.runs import execute_stack
from hydrant.runs.job import Job

WORDS = ("tracker=local", "duration=1", "eval_every=null")


def main(num_rates: int, counts: list[int]) -> None:
    """Print the seconds, and those of the processor, of a stack of each of these numbers of lanes."""
    torch.set_num_threads(1)
    job = hydrant.compose(WORDS).job("run", {})
    with tempfile.TemporaryDirectory() as folder:
        seconds_of(lanes(job, 2, num_rates, Path(folder, "imports")))
        for count in counts:
            print("seconds", *seconds_of(lanes(job, count, num_rates, Path(folder, str(count)))))


def lanes(job: Job, count: int, num_rates: int, folder: Path) -> list[Job]:
    """Return jobs that differ in the seed and the learning rate."""
    jobs = list[Job]()
    for n in range(count):
        optimizer = {**job.config["optimizer"], "lr": 1e-3 * (1 + n % num_rates)}
        config = {**job.config, "seed": n, "optimizer": optimizer}
        jobs.append(dataclasses.replace(job, config=config, folder=folder / str(n), sweep_folder=folder))
    return jobs


def seconds_of(jobs: list[Job]) -> tuple[float, float]:
    start, begun = time.perf_counter(), time.process_time()
    results = execute_stack(jobs)
    seconds = time.perf_counter() - start, time.process_time() - begun
    assert not any(result.exit_status for result in results)
    return seconds


if __name__ == "__main__":
    main(int(sys.argv[1]), list(map(int, sys.argv[2:])))
