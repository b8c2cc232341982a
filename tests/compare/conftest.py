"""Planted runs, and comparisons of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import write_planted

from hydrant.compare.comparison import Comparison, compare
from hydrant.compare.sources import read_runs
from hydrant.compare.targets import parse_target

Compare = Callable[..., Comparison]


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with known means and noise, failed and missing runs, and one of another commit."""
    return write_planted(tmp_path_factory.mktemp("planted") / "sweep")


@pytest.fixture(scope="session")
def comparing() -> Compare:
    def run(*words: Path | str, target: str | None = None, **options: Any) -> Comparison:
        given = {"by": None, "metric": None, "mode": None, "baseline": None} | options
        aim = None if target is None else parse_target(target)
        return compare(read_runs([str(word) for word in words]), target=aim, **given)

    return run
