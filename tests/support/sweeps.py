"""Sweeps of short jobs, their table of results, and a model whose argument decides how it fails."""

import csv
from pathlib import Path

from hydrant.config.groups import group_options

_OPTIONS = group_options().get("hydra/launcher", ())

LAUNCHERS = {
    name: words
    for name, words in {
        "basic": (),
        "local": ("hydra/launcher=local", "hydra.launcher.num_jobs=2"),
        "ray": ("hydra/launcher=ray", "hydra.launcher.num_jobs=2", "hydra.launcher.num_cpus=0.5"),
        "submitit_local": ("hydra/launcher=slurm", "hydra.launcher.cluster=local"),
        "slurm": ("hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.partition=debug"),
    }.items()
    if not words or words[0].partition("=")[2] in _OPTIONS
}
"""The overrides that choose each launcher that is installed."""

SHORT = ("tracker=local", "duration=8", "log_every=2", "eval_every=4", "save_every=4", "model.hidden=[16]",
         "data.augment.max_shift=1")  # fmt: skip
"""Overrides of a job that takes less than a second."""

FOUR_UPDATES = ("model.hidden=[16]", "duration=4", "log_every=1", "eval_every=2", "save_every=2",
                "micro_batch_size=16", "optimizer=sgd")  # fmt: skip
"""Overrides of a run of four updates."""

MODEL = """
import os
from hydrant.models import MLP

def model(*, input_shape, num_classes, hidden, dropout, fault):
    with open("built", "a") as file:
        print(os.getpid(), os.environ.get("FLAVOUR"), file=file)
    if fault == "odd":
        class Odd(Exception): ...
        raise Odd("strange")
    if fault == os.environ.get("FLAVOUR"):
        raise ValueError("not here")
    if fault == "killed":
        os.kill(os.getpid(), 9)
    return MLP(input_shape=input_shape, num_classes=num_classes, hidden=hidden, dropout=dropout)
"""


def sweep_table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of sweep.csv."""
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def short_with_fault(folder: Path) -> tuple[str, ...]:
    """Write a model whose argument `fault` decides how it fails; return the overrides of a short job with it."""
    (folder / "custom.py").write_text(MODEL)
    return (*SHORT, "allow_targets=[custom]", "model._target_=custom.model", "+model.fault=none")


def started_runs(sweep: Path) -> list[Path]:
    """Return the folders of the runs that have written metrics."""
    return sorted(path.parent for path in sweep.glob("*/metrics.jsonl"))
