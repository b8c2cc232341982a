"""The benchmarks run; their figures are another matter."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checks import ROOT

from benchmarks import BENCHMARKS, document

PEERS = ("update_overhead", "sweep_rate")
"""These need the dependency group `peers`."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_runs(name: str, tmp_path: Path) -> None:
    """Those for a GPU on this machine's processor, where it can."""
    if name in PEERS:
        pytest.importorskip("lightning")
    if name == "vit_small" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: CUDA graphs")
    output = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--output", str(output), name],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text())["benchmarks"][name]["figures"]


@pytest.mark.parametrize("page", document.pages(), ids=lambda page: page.name)
def test_the_pages_are_what_the_results_say(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == document.pages()[page]


@pytest.mark.parametrize("name", ["cost_model", "figures", "on_paper", "statistics"])
def test_what_their_docstrings_show_is_so(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert found.attempted
    assert not found.failed
