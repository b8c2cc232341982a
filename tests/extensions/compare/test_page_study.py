"""A study on the page: its history, pruned trials and Pareto front."""

import json
from collections.abc import Callable
from pathlib import Path

from planted import write_run
from playwright.sync_api import Page
from reports import description, figure

from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.html_page import write_page

OBJECTIVES = [{"metric": "val/accuracy", "mode": "max"}, {"metric": "num_parameters", "mode": "min"}]
TRIALS = [(0.80, 100, False), (0.70, 50, False), (0.60, 80, False), (0.75, 60, True), (0.90, 200, False)]


def write_study(study: Path) -> Path:
    for number, (accuracy, num_parameters, is_pruned) in enumerate(TRIALS):
        run = write_run(study / f"{number:04d}", {"optimizer.lr": 0.1 + number, "seed": number % 2}, accuracy)
        summary = json.loads((run / "summary.json").read_text()) | {"num_parameters": num_parameters}
        summary |= {"trial": {"number": number, "objectives": OBJECTIVES}, "pruned": is_pruned}
        (run / "summary.json").write_text(json.dumps(summary))
    return study


def test_a_study_has_a_history_and_a_pareto_front(
    comparing: Callable[..., Comparison], open_page: Callable[..., Page], tmp_path: Path
) -> None:
    comparison = comparing(write_study(tmp_path / "study"), by=["optimizer.lr", "seed"])
    assert [run.state for run in comparison.runs] == ["finished"] * 3 + ["pruned", "finished"]
    assert comparison.groups[3].estimate.num == 0, "a pruned run has no result"
    assert any("pruned: 0003" in warning.text for warning in comparison.warnings)
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    assert description(page, "history") == "History of the study: 5 trials, 4 of them finished, the best 0.9"
    assert figure(page, "history").locator("circle.hollow").count() == 1
    assert description(page, "scatter") == "Result over time: 4 runs, 3 on the Pareto front"
    assert "num_parameters" in figure(page, "scatter").locator("text").all_text_contents()


def test_the_heat_map_of_a_search_has_ranges_and_no_missing_cells(
    comparing: Callable[..., Comparison], open_page: Callable[..., Page], tmp_path: Path
) -> None:
    for number in range(30):
        overrides = {"optimizer.lr": 10 ** (-4 + number / 10.123456789), "scheduler.warmup": number % 3}
        run = write_run(tmp_path / "study" / f"{number:04d}", overrides, 0.5 + number / 100)
        trial = {"trial": {"number": number, "objectives": OBJECTIVES[:1]}}
        (run / "summary.json").write_text(json.dumps(json.loads((run / "summary.json").read_text()) | trial))
    write_page(comparing(tmp_path / "study"), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    assert "optimizer.lr by scheduler.warmup, 24 cells" in description(page, "heatmap")
    assert figure(page, "heatmap").get_by_text("no run").count() == 0
    assert figure(page, "heatmap").locator('rect[style*="hatch"]').count() == 0
    titles = figure(page, "heatmap").locator("text.end").all_text_contents()
    assert titles[1] == "0.0001 to 0.000228"
    legend = figure(page, "curves").get_by_role("button").all_text_contents()
    assert max(map(len, legend)) < len("optimizer.lr=0.0001234 scheduler.warmup=0 ")
