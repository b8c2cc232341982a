"""Runs, sweeps and rank groups that take a fraction of a second, to be started and killed many times."""

import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from spawned import serve_forks_again

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.runs.job import Job

TINY = ("tracker=local", "data=synthetic", "data.input_shape=[1,4,4]", "data.num_classes=3", "data.num_samples=64",
        "data.num_val_samples=8", "model.hidden=[4]", "model.dropout=0.5", "averaging=ema", "global_batch_size=8",
        "duration=4", "log_every=1", "eval_every=2", "save_every=2", "histogram_every=3", "keep_last=1")  # fmt: skip
"""Overrides of a run of four updates, with everything that a checkpoint must hold."""


@cache
def _resolved(words: tuple[str, ...]) -> Mapping[str, Any]:
    return check(compose([*TINY, *words]))


def tiny_job(folder: Path, *words: str) -> Job:
    """Return the job of a tiny run with these overrides."""
    choices = dict.fromkeys(("data", "model", "optimizer", "scheduler", "task"), "default")
    return Job(_resolved(words), folder, choices, {"overrides.yaml": "[]\n"}, [], None)


def train(job: Job) -> int:
    """Make the run folder, as Hydra does, train, and return the exit status."""
    from hydrant.runs.execute import execute

    job.folder.mkdir(parents=True, exist_ok=True)
    result = execute(job)
    if result.message:
        print(result.message, file=sys.stderr)
    return result.exit_status


def train_on_two_ranks(job: Job) -> int:
    """Train in this process and in a fork of it, as a launcher would."""
    with contextlib.closing(socket.create_server(("localhost", 0))) as server:
        port = server.getsockname()[1]
    pid = os.fork()
    rank = int(pid == 0)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                   "MASTER_PORT": str(port)}  # fmt: skip
    status = train(job)
    if rank:
        os._exit(status)
    return max(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def sweep(workdir: Path, words: tuple[str, ...]) -> int:
    """Run a sweep of tiny runs whose jobs are forked from this process, which has imported torch."""
    os.chdir(workdir)
    serve_forks_again()
    return cli.main(["train", "-m", *TINY, *words])
