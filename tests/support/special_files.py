"""Pipes in the place of files of data: opening one would wait for its writer."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hydrant.config.groups import option_path
from hydrant.errors import HydrantError


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Let a test that waits for a pipe fail."""

    def stop(*_: Any) -> None:
        raise TimeoutError("it waits for a pipe")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def options(name: str, **changes: Any) -> dict[str, Any]:
    """Return the arguments of an option of `data`, without interpolations."""
    plain = yaml.safe_load(option_path("data", name).read_text())
    del plain["_target_"]
    return {
        key: None if isinstance(value, str) and "${" in value else value for key, value in plain.items()
    } | changes


def check_refuses_pipe(read: Callable[[Path], Any], name: str, folder: Path) -> None:
    """Check that a reader of a file in a folder, which also holds the tokens `t.bin`, refuses a pipe in its place."""
    np.arange(200, dtype="uint16").tofile(folder / "t.bin")
    os.mkfifo(folder / name)
    with pytest.raises(HydrantError, match=r"it is a pipe, a socket or a device|there is no file"):
        read(folder / name)
