"""The benchmarks run, and their pages show the newest results."""

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

from benchmarks import PARTS, document, optimizers_page, tracking_cost
from benchmarks.document import RESULTS
from benchmarks.figures import Failure, Figure, Profile
from benchmarks.statistics import Interval
from benchmarks.update_cost import OPTIMIZERS

PEERS = ("update_overhead", "sweep_rate", "stacked")
"""These need the dependency group `peers`."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS["cpu"])
def test_every_benchmark_runs(name: str, tmp_path: Path) -> None:
    """test_gpu_script.py runs those for a GPU."""
    if name in PEERS:
        pytest.importorskip("lightning")
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


def test_the_table_of_optimizers_shows_the_measured_costs() -> None:
    """Each row has its own, and a changed number is found."""
    page = optimizers_page.PAGE.read_text(encoding="utf-8")
    measured, benchmark = document.newest_results()["cpu", "update_cost"]
    assert {row["what"] for row in benchmark["figures"]} == {
        f"{name} to adamw" for name in OPTIMIZERS if name != "adamw"
    }
    slower = [row | {"median": 7 * row["median"]} for row in benchmark["figures"]]
    changed = optimizers_page.text(page, measured, {"figures": slower})
    rows = [
        (old, new) for old, new in zip(page.splitlines(), changed.splitlines(), strict=True) if old != new
    ]
    named = {name for old, _ in rows for name in re.findall(r"`(\w+)`", old.split("|")[1])}
    assert named >= set(OPTIMIZERS)
    assert all(old.split("|")[3:] == new.split("|")[3:] for old, new in rows)


def test_a_page_has_newest_results_of_cpu_and_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = max(document.RESULTS.glob("*-cpu.json"))
    results = json.loads(first.read_text(encoding="utf-8"))
    for number, gpu in enumerate([None, "NVIDIA H200", None, "NVIDIA H200"]):
        results["measured"] |= {"gpu": gpu, "time": f"2026-01-0{number + 1} 12:00 UTC"}
        (tmp_path / f"{number}.json").write_text(json.dumps(results), encoding="utf-8")
    monkeypatch.setattr(document, "RESULTS", tmp_path)
    page = document.pages()[tmp_path / "README.md"]
    places = [line.partition(" UTC on ") for line in page.splitlines() if line.startswith("Measured 2026")]
    assert {day for day, _, _ in places} == {"Measured 2026-01-03 12:00", "Measured 2026-01-04 12:00"}
    (on_gpu,) = [place for day, _, place in places if day.startswith("Measured 2026-01-04")]
    assert on_gpu.startswith("NVIDIA H200")
    assert "- GPU, `vit_speed`" in page
    assert "- GPU, `host_syncs`" not in page


def test_the_page_shows_goals_failures_gaps_and_profiles_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "RESULTS", tmp_path)
    page = tmp_path / "README.md"
    goal = "| `vit_speed` | faster than eager fp32 | >= 6 |"
    assert f"{goal} not measured |" in document.pages()[page]
    measured = json.loads(max(RESULTS.glob("*-cpu.json")).read_text(encoding="utf-8"))["measured"]
    figure = Figure("faster than eager fp32", Interval(5.0, 4.0, 6.0), "x", ">= 6")
    benchmark = {
        "seconds": 9, "cells": {"eager": "measured", "compiled": None}, "figures": [figure.as_dict()],
        "failures": [Failure("timm", "Trace:\nRuntimeError: no").as_dict()],
        "profiles": [Profile("Hydrant", "12.3  40.0%  aten::mm").as_dict()],
    }  # fmt: skip
    results = {"measured": measured | {"gpu": "NVIDIA H200"}, "benchmarks": {"vit_speed": benchmark}}
    (tmp_path / "h200.json").write_text(json.dumps(results), encoding="utf-8")
    text = document.pages()[page]
    assert f"{goal} 5 x, **missed** |" in text
    assert "- failed: timm: `RuntimeError: no`" in text
    assert "- not measured: compiled" in text
    assert "```text\n12.3  40.0%  aten::mm\n```" in text
    assert "- GPU, `vit_speed`" not in text


def test_the_page_keeps_the_parts_that_a_later_result_of_the_same_gpu_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "RESULTS", tmp_path)
    measured = json.loads(max(RESULTS.glob("*-cpu.json")).read_text(encoding="utf-8"))["measured"]
    cells = {"eager": "faster than eager fp32", "compiled": "faster than timm's script, compiled"}

    def write(day: int, speeds: dict[str, float], gpu: str = "NVIDIA H200") -> str:
        figures = [
            {"cell": cell, **Figure(cells[cell], speed, "x", ">= 1").as_dict()}
            for cell, speed in speeds.items()
        ]
        benchmark = {
            "seconds": 9, "cells": {cell: "measured" if cell in speeds else None for cell in cells},
            "figures": figures, "failures": [], "profiles": [],
        }  # fmt: skip
        results = {
            "measured": measured | {"gpu": gpu, "time": f"2026-01-0{day} 12:00 UTC"},
            "benchmarks": {"vit_speed": benchmark},
        }
        (tmp_path / f"{day}.json").write_text(json.dumps(results), encoding="utf-8")
        return document.pages()[tmp_path / "README.md"]

    write(1, {"eager": 6.5, "compiled": 1.5})
    write(2, {"eager": 7.5})
    text = write(3, {"eager": 8.5})  # what day 2 has from day 1 is still of day 1
    assert "Measured 2026-01-03" in text
    assert "- compiled: measured 2026-01-01" in text
    assert all(
        f"| {cells[cell]} | {speed} x |" in text for cell, speed in (("eager", 8.5), ("compiled", 1.5))
    )
    assert "- not measured: compiled" in write(4, {"eager": 9.5}, gpu="NVIDIA H100")


@pytest.mark.parametrize("title", tracking_cost.RUNS)
def test_the_features_that_tracking_cost_switches_off_exist(title: str) -> None:
    for name in tracking_cost.RUNS[title]["switched"]:
        assert pkgutil.resolve_name(name)


@pytest.mark.parametrize("name", ["cost_model", "figures", "on_paper", "statistics", "two_gpus"])
def test_the_examples_in_docstrings_are_correct(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert results.attempted
    assert not results.failed
