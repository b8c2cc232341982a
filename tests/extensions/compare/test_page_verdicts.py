"""The verdicts, and a search with its history, pruned trials and Pareto front, on the page in Chromium."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import write_run
from playwright.sync_api import Page
from reports import column, description, figure

from hydrant.extensions.compare import comparison
from hydrant.extensions.compare.command import write_page
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.sources import Question, read_runs


def compared(sweep: Path, **options: Any) -> Comparison:
    return comparison.compare(read_runs([str(sweep)]), Question(metric="val/loss", **options))


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    sweep, noise = tmp_path_factory.mktemp("rates"), np.random.default_rng(0)
    for optimizer, best in (("adamw", -2.0), ("sgd", -1.0)):
        for lr in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
            for seed in range(2):
                loss = 0.05 + 0.05 * (math.log10(lr) - best) ** 2 + float(noise.normal(0, 0.002))
                is_failed = optimizer == "adamw" and lr == 1.0
                overrides = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
                status = {"status": "failed"} if is_failed else {}
                write_run(
                    sweep / f"{optimizer}-{lr}-{seed}", overrides, None if is_failed else 1 - loss, **status
                )
    return compared(sweep, against="val/loss<=0.06")


@pytest.fixture
def rates_page(open_page: Callable[..., Page], rates: Comparison, tmp_path: Path) -> Page:
    write_page(rates, tmp_path / "report.html")
    return open_page(tmp_path / "report.html")


def test_noise_and_target_have_sections_with_their_sentences(rates_page: Page, rates: Comparison) -> None:
    page, verdicts = rates_page, rates.verdicts
    assert verdicts.against is not None
    assert verdicts.tuning is not None
    for name in ("noise", "against", "tuning"):
        verdict = getattr(verdicts, name)
        assert page.locator(f"#{name} > p.note").all_inner_texts() == list(verdict.sentences), name
    assert column(page, "group", "against-table")[:1] == ["optimizer=sgd optimizer.lr=0.1"]
    assert page.locator("#against-table tr.best").count() == len(verdicts.against.passed)
    assert len(column(page, "size", "seeds-table")) == len(verdicts.noise.needs) > 0
    assert figure(page, "noise").locator("circle").count() == 10, "nine groups with noise, and the pooled one"


def test_the_figure_of_learning_rates_shows_lines_basins_and_failures(rates_page: Page) -> None:
    shown = figure(rates_page, "sensitivity")
    assert "2 lines over 0.0001 to 1; basins optimizer=adamw \N{MULTIPLICATION SIGN}" in description(
        rates_page, "sensitivity"
    )
    assert shown.locator("path.line").count() == shown.locator("path.band").count() == 2
    assert shown.locator("line.wide").count() == 2
    assert (
        shown.locator("text", has_text="\N{MULTIPLICATION SIGN}").filter(has_text="optimizer").count() == 2
    ), "each basin has its width"
    assert shown.get_by_text("\N{MULTIPLICATION SIGN}", exact=True).count() == 1, "where runs of adamw failed"
    assert column(rates_page, "best lr", "basin-table") == ["0.01", "0.1"]
    initial = shown.locator("path.line").first.get_attribute("d")
    rates_page.get_by_label("Logarithmic results").click()
    assert shown.locator("path.line").first.get_attribute("d") != initial


def test_the_figure_of_tuning_shows_a_curve_and_a_band_for_each_method(rates_page: Page) -> None:
    shown = figure(rates_page, "tuning")
    assert description(rates_page, "tuning") == "Expected best of n trials: 2 methods, up to 5 trials"
    assert (shown.locator("path.line").count(), shown.locator("path.band").count()) == (2, 2)
    assert shown.locator("circle").count() == 10
    assert column(rates_page, "trials", "tuning-table") == ["5", "5"]


def test_tips_tell_small_differences_apart(open_page: Callable[..., Page], tmp_path: Path) -> None:
    for n, lr in enumerate((1e-3, 1e-2, 1e-1)):
        write_run(tmp_path / f"{n}", {"optimizer.lr": lr, "seed": 0}, None, values=[0.9 + 2e-6 * n])
    page_file = tmp_path / "report.html"
    write_page(comparison.compare(read_runs([str(tmp_path)]), Question(metric="val/accuracy")), page_file)
    page = open_page(page_file)
    for name in ("sensitivity", "curves"):
        tips = figure(page, name).locator("circle").evaluate_all("all => all.map((one) => one.dataset.tip)")
        values = [tip.split("val/accuracy ")[1].split()[0] for tip in tips if tip]
        assert values == ["0.9", "0.900002", "0.900004"], name


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
