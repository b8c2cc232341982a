"""`hydrant.compose` in several threads."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hydrant


@pytest.mark.slow
def test_threads_may_compose_at_once(tmp_path: Path) -> None:
    """Each gets the config of its own overrides and conf folder, and the process is as before."""
    folders = [tmp_path / name for name in "ab"]
    for number, folder in enumerate(folders):
        (folder / "experiment").mkdir(parents=True)
        (folder / "experiment" / "mine.yaml").write_text(
            f"# @package _global_\noptimizer:\n  lr: 0.{1 + number}\n"
        )
    before = dict(os.environ), list(sys.path)

    def compose(number: int) -> tuple[int, float]:
        config = hydrant.compose(["experiment=mine", f"seed={number}"], conf=folders[number % 2])
        return config["seed"], config["optimizer"]["lr"]

    with ThreadPoolExecutor(4) as pool:
        composed = list(pool.map(compose, range(4)))
    assert composed == [(number, (0.1, 0.2)[number % 2]) for number in range(4)]
    assert (dict(os.environ), list(sys.path)) == before
