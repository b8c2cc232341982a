"""Fixtures of the trackers' tests: a run's identity, trackers made from their YAML, and a W&B of our own."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hydrant.trackers.base import RunIdentity
from hydrant.trackers.tensorboard import TensorBoardTracker
from hydrant.trackers.wandb import WandbTracker

from .wandb_server import WandbServer

CONF = Path(__file__).parents[2] / "conf" / "tracker"
KEY = "0123456789abcdef0123456789abcdef01234567"  # of the form the SDK asks for; the server takes any


@pytest.fixture
def identity(tmp_path: Path) -> RunIdentity:
    folder = tmp_path / "run"
    folder.mkdir()
    config = {"optimizer": "adamw", "optimizer.lr": 0.001, "seed": 0, "model": None}
    return RunIdentity(folder, "adamw-0", "adamw", "train", ("baseline", "digits"), config)


@pytest.fixture
def wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A W&B SDK that knows no account and nothing of this machine's settings; ended after the test."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv(
        "WANDB_BASE_URL", "http://127.0.0.1:9"
    )  # nobody listens: a forgotten server is no leak
    _end_sdk()  # a run of another test may have started it with other settings
    yield home
    _end_sdk()


def _end_sdk() -> None:
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture
def wandb_server(wandb_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """The stand-in for W&B, and an environment (also for child processes) that has an account there."""
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield server


@pytest.fixture
def make_wandb(wandb_home: Path) -> Callable[..., WandbTracker]:
    """`make_wandb(identity, num_updates=0, **changes to conf/tracker/wandb.yaml)`."""

    def make(identity: RunIdentity, num_updates: int = 0, **changes: Any) -> WandbTracker:
        return WandbTracker(identity, num_updates, **{**_arguments("wandb"), **changes})

    return make


@pytest.fixture
def make_tensorboard() -> Callable[..., TensorBoardTracker]:
    def make(identity: RunIdentity, num_updates: int = 0) -> TensorBoardTracker:
        return TensorBoardTracker(identity, num_updates, **_arguments("tensorboard"))

    return make


@pytest.fixture
def warnings_given(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings the user has seen so far."""
    caplog.set_level(logging.INFO, logger="hydrant")
    return lambda: [
        r.getMessage() for r in caplog.records if r.name == "hydrant" and r.levelno >= logging.WARNING
    ]


def _arguments(option: str) -> Mapping[str, Any]:
    arguments = yaml.safe_load((CONF / f"{option}.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in arguments.items() if not key.startswith("_")}
