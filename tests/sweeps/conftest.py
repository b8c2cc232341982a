"""SLURM for the tests of sweeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm import run_slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """SLURM runs while the tests of a module run."""
    yield from run_slurm(tmp_path_factory.mktemp("slurm"))
