"""What is measured beside a hand-written loop comes to the same weights."""

from __future__ import annotations

import subprocess
import sys

import pytest
from checks import ROOT


@pytest.mark.slow
def test_a_bare_run_has_the_weights_of_the_loop_by_hand() -> None:
    words = ("--only", "Hydrant, bare", "--blocks", "2", "--block-size", "5")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.update_overhead", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same weights") == 2
