"""Trials of a task on the host, as a run with a small config makes them."""

from types import SimpleNamespace
from typing import Any

from hydrant.data import Data
from hydrant.training.distributed.world import World
from hydrant.training.prepare.rehearsal import Rehearsal


def trials_of(task: Any, data: Data, **settings: Any) -> Rehearsal:
    """Return the trials of a run on one rank in float32; `settings` are keys of its config."""
    config = {"eval_batch_size": 4, "eval_every": "1", "global_batch_size": 4, "micro_batch_size": None,
              "limit_train_samples": None, "seed": 0, "parallel": {}}  # fmt: skip
    precision: Any = SimpleNamespace(around=lambda forward: forward)
    return Rehearsal(task, data, precision, config | settings, World.from_launcher())
