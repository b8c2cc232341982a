"""The benchmarks run, and their pages show the newest results."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from repository import ROOT

from benchmarks import BENCHMARKS, document, tracking_cost

PEERS = ("update_overhead", "sweep_rate")
"""These need the dependency group `peers`."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_runs(name: str, tmp_path: Path) -> None:
    """Without a GPU, the GPU benchmarks run on the CPU where possible."""
    if name in PEERS:
        pytest.importorskip("lightning")
    if name == "vit_small" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: CUDA graphs")
    output = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--output", str(output), name],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text())["benchmarks"][name]["figures"]


@pytest.mark.parametrize("page", document.pages(), ids=lambda page: page.name)
def test_the_pages_are_generated_from_the_results(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == document.pages()[page]


def test_a_page_has_the_newest_results_of_cpu_and_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = max(document.RESULTS.glob("*-cpu.json"))
    results = json.loads(first.read_text(encoding="utf-8"))
    for number, gpu in enumerate([None, "NVIDIA H200", None, "NVIDIA H200"]):
        results["measured"] |= {"gpu": gpu, "time": f"2026-01-0{number + 1} 12:00 UTC"}
        (tmp_path / f"{number}.json").write_text(json.dumps(results), encoding="utf-8")
    monkeypatch.setattr(document, "RESULTS", tmp_path)
    page = document.pages()[document.DOCS / "performance.md"]
    places = [line.partition(" UTC on ") for line in page.splitlines() if line.startswith("Measured 2026")]
    assert {day for day, _, _ in places} == {"Measured 2026-01-03 12:00", "Measured 2026-01-04 12:00"}
    (on_gpu,) = [place for day, _, place in places if day.startswith("Measured 2026-01-04")]
    assert on_gpu.startswith("NVIDIA H200")
    assert "- GPU, `scripts/bench vit_speed`" in page
    assert "`scripts/bench host_syncs`" not in page


@pytest.mark.parametrize("title", tracking_cost.RUNS)
def test_the_features_that_tracking_cost_switches_off_exist(title: str) -> None:
    for name in tracking_cost.RUNS[title]["switched"]:
        assert pkgutil.resolve_name(name)


@pytest.mark.parametrize("name", ["cost_model", "figures", "on_paper", "statistics"])
def test_the_examples_in_docstrings_are_correct(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert results.attempted
    assert not results.failed
