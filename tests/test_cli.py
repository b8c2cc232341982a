"""The command line when its output is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HYDRANT = Path(sys.executable).with_name("hydrant")


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("train", "--help"), ("train", "--cfg", "job")]
)
def test_closed_stdout_ends_a_command_like_a_signal(words: tuple[str, ...]) -> None:
    """As in `hydrant --help | head -1`, if `head` has ended before the help is printed."""
    done = subprocess.run(
        [HYDRANT, *words], stdout=closed_pipe(), stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [("unknown",), ("train", "optimizer=unknown")])
def test_closed_stderr_changes_no_exit_status(words: tuple[str, ...]) -> None:
    pipe = closed_pipe()
    assert subprocess.run([HYDRANT, *words], stdout=pipe, stderr=pipe, check=False).returncode == 2


def closed_pipe() -> int:
    """Return the writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer
