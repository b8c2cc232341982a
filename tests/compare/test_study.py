"""A study on the page: its history, its pruned trials, and the front of its objectives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from planted import write_run
from playwright.sync_api import Page
from reports import figure, told

from hydrant.compare.comparison import Comparison
from hydrant.compare.page import write_page

OBJECTIVES = [{"metric": "val/accuracy", "mode": "max"}, {"metric": "num_parameters", "mode": "min"}]
TRIALS = [(0.80, 100, False), (0.70, 50, False), (0.60, 80, False), (0.75, 60, True), (0.90, 200, False)]


def write_study(study: Path) -> Path:
    for number, (accuracy, num_parameters, is_pruned) in enumerate(TRIALS):
        run = write_run(study / f"{number:04d}", {"optimizer.lr": 0.1 + number, "seed": number % 2}, accuracy)
        summary = json.loads((run / "summary.json").read_text()) | {"num_parameters": num_parameters}
        summary |= {"trial": {"number": number, "objectives": OBJECTIVES}, "pruned": is_pruned}
        (run / "summary.json").write_text(json.dumps(summary))
    return study


def test_history_and_front(
    comparing: Callable[..., Comparison], open_page: Callable[..., Page], tmp_path: Path
) -> None:
    comparison = comparing(write_study(tmp_path / "study"), by=["optimizer.lr", "seed"])
    assert [run.state for run in comparison.runs] == ["finished"] * 3 + ["pruned", "finished"]
    assert comparison.groups[3].estimate.num == 0, "a pruned run is no result"
    assert not comparison.missing, "a search is no grid"
    assert any("pruned: 0003" in warned.text for warned in comparison.warnings)
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    assert told(page, "history") == "History of the study: 5 trials, 4 of them finished, the best 0.9"
    assert figure(page, "history").locator("circle.hollow").count() == 1
    assert told(page, "scatter") == "Result over time: 4 runs, 3 on the Pareto front"
    assert "num_parameters" in figure(page, "scatter").locator("text").all_text_contents()
