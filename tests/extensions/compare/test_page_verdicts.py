"""The verdicts on the page of `hydrant compare`, in Chromium."""

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
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.html_page import write_page
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
    for name, verdict in (
        ("noise", verdicts.noise),
        ("against", verdicts.against),
        ("tuning", verdicts.tuning),
    ):
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
        assert [tip.split("val/accuracy ")[1].split()[0] for tip in tips if tip] == [
            "0.9",
            "0.900002",
            "0.900004",
        ], name
