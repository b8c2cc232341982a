"""Studies of Optuna: their search spaces, samplers and pruners, and sweeps that search."""

from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from repository import conf_files

from hydrant.extensions.optuna.trials import Search, Space, read_space
from hydrant.records import Objective

OBJECTIVE = Objective("val/accuracy", "max")

TINY = ("tracker=local", "duration=4", "log_every=2", "eval_every=2", "save_every=2", "model.hidden=[4]",
        "limit_train_samples=128", "limit_val_samples=64", "global_batch_size=16")  # fmt: skip
"""Overrides of a trial of a few updates."""


def _options(kind: str) -> dict[str, Any]:
    files = conf_files(f"hydra/sweeper/{kind}/*.yaml").values()
    return {file.stem: yaml.safe_load(file.read_text()) for file in files}


SAMPLERS, PRUNERS = _options("sampler"), _options("pruner")


def space_of(*words: str) -> Space:
    """Return the search space of overrides."""
    return read_space(OverridesParser.create().parse_overrides(list(words)))


def search_of(sampler: str, *words: str) -> Search:
    """Return a study of one objective, without pruner, over these overrides or a default space."""
    words = words or ("a=tag(log, interval(1e-3,1))", "b=choice(x,y,z)", "c=range(1,9)")
    return Search(space_of(*words), [OBJECTIVE], SAMPLERS[sampler], PRUNERS["none"])
