"""Fixtures for tests of trackers: a run's identity, trackers with the arguments of their YAML, a stand-in for W&B."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from wandb_server import WandbServer

from hydrant.config.groups import option_path
from hydrant.trackers import RunIdentity

if TYPE_CHECKING:
    from hydrant.extensions.tensorboard import TensorBoardTracker
    from hydrant.extensions.wandb.tracker import WandbTracker

KEY = "0123456789abcdef0123456789abcdef01234567"  # the SDK checks its form; the stand-in accepts any key


@pytest.fixture
def identity(tmp_path: Path) -> RunIdentity:
    folder = tmp_path / "run"
    folder.mkdir()
    config = {"optimizer": "adamw", "optimizer.lr": 0.001, "seed": 0, "model": None}
    return RunIdentity(folder, "adamw-0", "adamw", "train", ("baseline", "digits"), config)


@pytest.fixture
def wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A W&B SDK without an account and without this machine's settings. It is stopped after the test."""
    home = tmp_path / "home"
    home.mkdir()
    for name in _wandb_variables():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # refuses: nothing reaches the real W&B
    monkeypatch.setattr(sys, "exit", sys.exit)  # a run that a test leaves open leaves its hooks and variables
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    stop_wandb()  # another test may have started it with other settings
    # The SDK looks five times a second whether wandb-core has started.
    monkeypatch.setattr("wandb.sdk.lib.service.service_port_file._SLEEP", lambda _: time.sleep(0.01))
    yield home
    stop_wandb()
    for name in _wandb_variables():
        del os.environ[name]


def _wandb_variables() -> list[str]:
    return [name for name in os.environ if name.startswith("WANDB_")]


def stop_wandb() -> None:
    """Stop wandb-core and forget the SDK's settings."""
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture
def end_wandb() -> Callable[[], None]:
    return stop_wandb


@pytest.fixture
def reap() -> Iterator[None]:
    """Poll ended processes: the SDK does not if wandb-core died, and Python warns about them at exit."""
    yield
    for thing in gc.get_objects():
        if type(thing) is subprocess.Popen:
            thing.poll()


@pytest.fixture
def wandb_server(wandb_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """The stand-in for W&B, with an account in the environment, also for child processes."""
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield server


@pytest.fixture
def make_wandb(wandb_home: Path) -> Callable[..., WandbTracker]:
    """`make_wandb(identity, num_updates=0, **changes to src/hydrant/extensions/wandb/conf/tracker/wandb.yaml)`.

    The time limits are longer than in the YAML, because a loaded machine answers late.
    """
    from hydrant.extensions.wandb.tracker import WandbTracker

    limits = {"probe_timeout": 60.0, "init_timeout": 120.0, "finish_timeout": 120.0}

    def make(identity: RunIdentity, num_updates: int = 0, **changes: Any) -> WandbTracker:
        return WandbTracker(identity, num_updates, **{**_arguments("wandb"), **limits, **changes})

    return make


@pytest.fixture
def make_tensorboard() -> Callable[..., TensorBoardTracker]:
    from hydrant.extensions.tensorboard import TensorBoardTracker

    def make(identity: RunIdentity, num_updates: int = 0) -> TensorBoardTracker:
        return TensorBoardTracker(identity, num_updates, **_arguments("tensorboard"))

    return make


def _arguments(option: str) -> Mapping[str, Any]:
    arguments = yaml.safe_load(option_path("tracker", option).read_text(encoding="utf-8"))
    return {key: value for key, value in arguments.items() if not key.startswith("_")}
