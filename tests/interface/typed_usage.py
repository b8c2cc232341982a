"""How a user calls the Python interface. Pyrefly checks the types that it gives; the code is not run."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, assert_type

import pandas as pd
from torch import nn

import hydrant
from hydrant.data import Data
from hydrant.tasks import Classification


def train_and_read(model: nn.Module, data: Data) -> None:
    """Compose, train, and read what the run has written."""
    config = hydrant.compose(["optimizer=sgd", "seed=1"], conf="conf")
    assert_type(config, hydrant.Config)
    mapping: Mapping[str, Any] = config
    print(mapping["optimizer"]["lr"], *config.overrides)
    run = hydrant.train(config)
    assert_type(run, hydrant.Run)
    task = partial(Classification, label_smoothing=0.1, metrics={})
    run = hydrant.train(config, model=model, data=data, task=task, folder=Path("outputs/own"))
    assert_type(run.metrics, pd.DataFrame)
    assert_type(run.summary, dict[str, Any])
    assert_type(run.config, dict[str, Any])
    assert_type(run.folder, Path)
    assert_type(run.status, str)
    assert_type(run.model("best", device="cuda"), nn.Module)
    assert_type(run.evaluate("val", weights="ema"), dict[str, float])
    assert_type(hydrant.load_run("outputs/own", model=model, data=data, task=Own), hydrant.Run)


class Own(Classification):
    """A task that is passed as a class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, label_smoothing=0.0, metrics={})


def mistakes(run: hydrant.Run) -> None:
    """What pyrefly must refuse: where it sees no error, the comment is one."""
    run.model("bset")  # pyrefly: ignore[bad-argument-type]
    hydrant.train(["optimizer=sgd"])  # pyrefly: ignore[bad-argument-type]
    hydrant.trian  # pyrefly: ignore[missing-attribute]


def catch() -> str:
    """Catch an error by its type and read its key."""
    try:
        hydrant.compose(["optimizer=sdg"])
    except hydrant.ConfigError as error:
        return error.key
    return ""
