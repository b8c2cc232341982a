"""A function in a process of its own returns its result and prints nothing."""

import os
from collections.abc import Mapping
from typing import Any

import pytest

from hydrant.sweeps.fork_server.call import run_isolated


def printing(config: Mapping[str, Any]) -> int:
    print("from Python", flush=True)
    os.write(1, b"from C")
    return config["value"]


def test_what_a_function_prints_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_isolated(printing, {"value": 3}, preload=[]) == 3
    assert capfd.readouterr() == ("", "")
