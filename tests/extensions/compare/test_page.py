"""The page of `hydrant compare` in Chromium, without a network: tables, filter, keyboard, colours, verdicts, search."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import comparing, write_run
from playwright.sync_api import Page, expect
from reports import column, data_of, description, figure

from hydrant.extensions.compare import comparison
from hydrant.extensions.compare.command import SCRIPTS, write_page
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.sources import Question, read_runs

EMPTY = "\N{EN DASH}"  # a missing number


def test_the_page_shows_the_comparison(page: Page, planted: Path) -> None:
    comparison = comparing(planted, baseline="optimizer=sgd")
    expect(page).to_have_title("val/accuracy of 20 runs")
    expect(page.get_by_role("heading", level=1)).to_have_text("val/accuracy of 20 runs")
    warnings = page.get_by_role("region", name="Warnings").get_by_role("listitem").all_inner_texts()
    assert [text.partition(": ")[2] for text in warnings] == [warning.text for warning in comparison.warnings]
    verdict = page.get_by_role("region", name="Verdict")
    expect(verdict).to_contain_text(
        "Undecided: lion wsd has a better mean than adamw cosine, but 2 of the "
        "5 runs of lion wsd have no result (2 failed)."
    )
    assert column(page, "n", "groups-table") == ["3/5", "5/5", "5/5", "4/5"]
    assert column(page, "mean", "groups-table") == ["0.9704", "0.9504", "0.9284", "0.9001"]
    assert column(page, "withoutresult", "groups-table") == ["2 failed", EMPTY, EMPTY, "1 missing"]
    assert sorted(column(page, "state")) == ["failed"] * 2 + ["finished"] * 17 + ["missing"]
    assert "train/loss became NaN or infinite" in column(page, "error")


def test_columns_sort_by_mouse_and_by_keyboard(page: Page) -> None:
    heading = page.get_by_role("columnheader", name="val/accuracy").first
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    values = column(page, "val/accuracy")
    assert values[-3:] == [EMPTY] * 3, "missing values come last"
    assert values[:-3] == sorted(values[:-3], key=float)
    heading.get_by_role("button").press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    values = column(page, "val/accuracy")
    assert values[:-3] == sorted(values[:-3], key=float, reverse=True)
    assert values[-3:] == [EMPTY] * 3
    page.get_by_role("columnheader", name="optimizer").last.get_by_role("button").press("Space")
    assert column(page, "optimizer") == sorted(column(page, "optimizer"))
    expect(heading).to_have_attribute("aria-sort", "none")


def test_the_filter_applies_to_the_table_and_to_single_runs(page: Page) -> None:
    page.get_by_label("Show", exact=True).select_option("runs")
    for words, count in {
        "lion": 5,
        "optimizer=adamw": 10,
        "scheduler=wsd seed=0": 2,
        "val/accuracy>0.95": 6,
        "seed<2": 8,
        "became": 2,
        "state=failed": 2,
        "updates_to_target<100": 13,
        "seed=1e0": 4,
        "scheduler=cosi": 0,
        "nowhere": 0,
        "": 20,
    }.items():
        page.get_by_role("searchbox", name="Filter runs").fill(words)
        expect(page.get_by_text(f"{count} of 20 runs", exact=True)).to_be_visible()
        assert page.locator("#runs-table tbody tr").count() == count
        num_finished = column(page, "state").count("finished")
        assert figure(page, "scatter").locator("circle").count() == num_finished
        with_curve = count - column(page, "state").count("missing")
        assert figure(page, "curves").locator("path.line").count() == with_curve


@pytest.mark.slow
def test_words_that_are_no_condition_filter_nothing_and_are_named(page: Page) -> None:
    box = page.get_by_role("searchbox", name="Filter runs")
    for words, (count, problem) in {
        "seed<": (20, "Not used: seed< (a value is missing)"),
        "lr=0.1 seed<2": (8, "Not used: lr=0.1 (no column lr)"),
        "optim=adamw": (20, "Not used: optim=adamw (no column optim; optimizer?)"),
        "seed<two": (20, "Not used: seed<two (two is not a number)"),
        "optimizer<5 lion": (5, "Not used: optimizer<5 (optimizer has no numbers)"),
        "seed==0": (20, "Not used: seed==0 (write =, <, >, <= or >=)"),
        "=0 <": (20, "Not used: =0 (a column is missing), < (a column is missing)"),
        "error=0": (0, ""),
        "seed<2": (8, ""),
    }.items():
        box.fill(words)
        expect(page.get_by_text(f"{count} of 20 runs", exact=True)).to_be_visible()
        expect(page.locator("#runs .problem")).to_have_text(problem)
        expect(box).to_have_attribute("aria-invalid", str(bool(problem)).lower())


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_tables_show_whether_they_have_more_columns(
    open_page: Callable[..., Page], report: Path, width: int
) -> None:
    page = open_page(report)
    page.set_viewport_size({"width": width, "height": 900})
    for name in ("Table of groups", "Table of runs", "Table of times", "Table of scores"):
        region = page.get_by_role("region", name=name)
        frame = page.locator(".scroll-frame", has=region)
        hint = page.locator("div", has=frame).last.get_by_text("Scroll sideways for more columns.")
        hidden = region.evaluate("e => e.scrollWidth - e.clientWidth")
        assert hidden <= 1 or width == 390 or name == "Table of runs"
        expect(hint).to_be_visible(visible=hidden > 1)
        expect(frame).to_have_class(re.compile("more-right" if hidden > 1 else "^scroll-frame *$"))
        assert region.evaluate("e => e.querySelector('caption span').clientWidth < e.clientWidth")
        region.evaluate("e => e.scrollLeft = e.scrollWidth")
        expect(frame).to_have_class(
            re.compile("^scroll-frame more-left$" if hidden > 1 else "^scroll-frame *$")
        )


def test_tables_leave_out_empty_columns(open_page: Callable[..., Page], tmp_path: Path) -> None:
    for optimizer in ("adamw", "sgd"):
        write_run(tmp_path / optimizer, {"optimizer": optimizer}, 0.9 + len(optimizer) / 100)
    write_page(comparing(tmp_path), tmp_path / "report.html")
    heads = open_page(tmp_path / "report.html").locator("#groups-table thead th").all_inner_texts()
    assert heads == ["optimizer", "n", "mean", "median", "difference"], "without intervals and tests"


@pytest.mark.slow
def test_the_page_works_with_a_keyboard_and_a_screen_reader(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the results")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert (
        page.get_by_role("navigation", name="Sections").get_by_role("link").count()
        == page.get_by_role("region").filter(has=page.get_by_role("heading", level=2)).count()
    )
    for control in page.locator("select, input, button").all():
        name = control.evaluate(
            "e => e.labels?.[0]?.textContent || e.getAttribute('aria-label') || e.textContent"
        )
        assert name.strip()
    assert all(image.get_attribute("aria-label") for image in page.get_by_role("img").all())
    for table in page.get_by_role("table").all():
        assert table.locator("caption").inner_text()
        assert table.locator("thead th:not([scope=col])").count() == 0
    legend = figure(page, "curves").get_by_role("button", name="optimizer=lion scheduler=wsd")
    legend.press("Space")
    expect(legend).to_have_attribute("aria-pressed", "false")
    expect(legend).to_be_focused()
    ids = page.eval_on_selector_all("[id]", "elements => elements.map((e) => e.id)")
    assert len(ids) == len(set(ids))


COLOURS = """[...Array(10).keys()].map((n) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--s${n})`;
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
})"""
"""The current colours of the groups."""


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_choice(
    open_page: Callable[..., Page], report: Path, scheme: str
) -> None:
    page = open_page(report, color_scheme=scheme)

    def style(selector: str, field: str) -> str:
        return page.eval_on_selector(selector, f"e => getComputedStyle(e).{field}")

    assert (luminance(style("body", "backgroundColor")) < 0.1) == (scheme == "dark")
    for ink, ground in [("h2", "section#groups"), (".note", "section#groups"), ("#warnings li", "#warnings")]:
        darker, lighter = sorted(
            [luminance(style(ink, "color")), luminance(style(ground, "backgroundColor"))]
        )
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, f"{ink} has too little contrast"
    lines = page.evaluate(COLOURS)
    assert len(set(lines)) == 10
    for colour in lines:  # lines need less contrast than text
        darker, lighter = sorted([luminance(colour), luminance(style("section#groups", "backgroundColor"))])
        assert (lighter + 0.05) / (darker + 0.05) >= 3, f"{colour} has too little contrast"
    other_scheme = "light" if scheme == "dark" else "dark"
    page.get_by_label("Theme").select_option(other_scheme)
    assert (luminance(style("body", "backgroundColor")) < 0.1) == (other_scheme == "dark")


def test_a_label_cannot_end_the_script(tmp_path: Path) -> None:
    label = "</script><script>alert(1)</script><!--"
    write_run(tmp_path / "a", {"scheduler.warmup": label}, 0.9)
    write_run(tmp_path / "b", {"scheduler.warmup": 0}, 0.9)
    comparison = comparing(tmp_path)
    write_page(comparison, tmp_path / "report.html")
    assert "<script>alert" not in (tmp_path / "report.html").read_text()
    groups = data_of(tmp_path / "report.html")["groups"]
    assert label in [value for group in groups for value in group["labels"].values()]


def test_the_page_contains_all_its_scripts_and_no_address(report: Path) -> None:
    folder = Path(write_page.__code__.co_filename).with_name("page")
    assert sorted(SCRIPTS) == sorted(path.stem for path in folder.glob("*.js"))
    assert all(len(path.read_text().splitlines()) <= 250 for path in folder.iterdir() if path.is_file())
    text = report.read_text()
    assert text.count("</script>") == 2
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert len(data_of(report)["runs"]) == 20


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_study_has_a_history_and_a_pareto_front(open_page: Callable[..., Page], tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_the_heat_map_of_a_search_has_ranges_and_no_missing_cells(
    open_page: Callable[..., Page], tmp_path: Path
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
