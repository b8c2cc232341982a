"""The run that the tests of the executors compare with."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import FOUR_UPDATES
from training_runs import run_command


@pytest.fixture(scope="session")
def single_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four updates, with one rank and without a launcher."""
    folder = tmp_path_factory.mktemp("single")
    done = run_command("name=single", "tracker=local", *FOUR_UPDATES, "optimizer.lr=0.1", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "outputs" / "single"
