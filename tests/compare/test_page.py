"""The page of `hydrant compare` in a real Chromium, without a network."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from planted import many_runs, write_run
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from hydrant.compare.comparison import Comparison, compare
from hydrant.compare.curves import NUM_POINTS
from hydrant.compare.page import SCRIPTS, write_page

Compare = Callable[..., Comparison]
EMPTY = "\N{EN DASH}"  # a number that there is not
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # As root, as in a container, its sandbox cannot start; the page is our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(planted: Path, comparing: Compare, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(comparing(planted, target="val/accuracy>=0.9", baseline="optimizer=sgd"), path)
    return path


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a report; in the end nothing may have been wrong in the console, and nothing been fetched."""
    wrong: list[str] = []
    contexts = []

    def run(path: Path, **options: str) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]")
        return page

    yield run
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def page(open_page: Callable[..., Page], report: Path) -> Page:
    return open_page(report)


def column(page: Page, title: str, table: str = "runs-table") -> list[str]:
    titles = [re.sub(r"\s", "", text) for text in page.locator(f"#{table} thead th").all_inner_texts()]
    place = titles.index(title.replace(" ", "")) + 1
    return [
        text.strip() for text in page.locator(f"#{table} tbody tr > :nth-child({place})").all_inner_texts()
    ]


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"figure[data-figure={name}]")


def told(page: Page, name: str) -> str:
    return figure(page, name).get_by_role("img").get_attribute("aria-label") or ""


def test_the_page_shows_what_the_comparison_says(page: Page, planted: Path, comparing: Compare) -> None:
    comparison = comparing(planted, baseline="optimizer=sgd")
    expect(page).to_have_title("val/accuracy of 20 runs")
    expect(page.get_by_role("heading", level=1)).to_have_text("val/accuracy of 20 runs")
    warned = page.get_by_role("region", name="Before reading on").get_by_role("listitem").all_inner_texts()
    assert [text.partition(": ")[2] for text in warned] == [warned.text for warned in comparison.warnings]
    best = page.get_by_role("region", name="Best")
    expect(best).to_contain_text("optimizer=adamw scheduler=cosine")
    expect(best).to_contain_text("val/accuracy 0.9504 (95 % interval 0.9461 to 0.9547, n = 5)")
    expect(best).to_contain_text(
        "Not counted as best: optimizer=lion scheduler=wsd, 0.9704, because 2 of its 5 runs failed"
    )
    assert column(page, "n", "groups-table") == ["3 of 5", "5 of 5", "5 of 5", "4 of 5"]
    assert column(page, "mean", "groups-table") == ["0.9704", "0.9504", "0.9284", "0.9001"]
    assert column(page, "withoutresult", "groups-table") == ["2 failed", EMPTY, EMPTY, "1 missing"]
    expect(page.locator("#missing")).to_contain_text(
        "2 of 6 cells have no run: optimizer=lion scheduler=cosine"
    )
    assert sorted(column(page, "state")) == ["failed"] * 2 + ["finished"] * 17 + ["missing"]
    assert "train/loss became NaN or infinite" in column(page, "error")


def test_columns_sort_by_mouse_and_by_keyboard(page: Page) -> None:
    heading = page.get_by_role("columnheader", name="val/accuracy").first
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    values = column(page, "val/accuracy")
    assert values[-3:] == [EMPTY] * 3, "what is missing comes last"
    assert values[:-3] == sorted(values[:-3], key=float)
    heading.get_by_role("button").press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    values = column(page, "val/accuracy")
    assert values[:-3] == sorted(values[:-3], key=float, reverse=True)
    assert values[-3:] == [EMPTY] * 3
    page.get_by_role("columnheader", name="optimizer").last.get_by_role("button").press("Space")
    assert column(page, "optimizer") == sorted(column(page, "optimizer"))
    expect(heading).to_have_attribute("aria-sort", "none")


def test_the_filter_holds_for_the_table_and_the_single_runs(page: Page) -> None:
    page.get_by_label("Show", exact=True).select_option("runs")
    for words, count in {
        "lion": 5,
        "optimizer=adamw": 10,
        "scheduler=wsd seed=0": 2,
        "val/accuracy>0.95": 6,
        "seed<2": 8,
        "became": 2,
        "state=failed": 2,
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


def test_curves_over_every_unit_smooth_and_logarithmic(page: Page) -> None:
    assert told(page, "curves") == "Curves: val/accuracy over updates, 4 groups"
    drawn = figure(page, "curves").locator("path.line").first
    before = drawn.get_attribute("d")
    for unit, last in {"samples": "6,000", "seconds": "1"}.items():
        page.get_by_label("Over", exact=True).first.select_option(unit)
        assert told(page, "curves") == f"Curves: val/accuracy over {unit}, 4 groups"
        assert last in figure(page, "curves").locator("text").all_text_contents()
    page.get_by_label("Over", exact=True).first.select_option("updates")
    assert drawn.get_attribute("d") == before
    page.get_by_label("Metric", exact=True).select_option("train/loss")
    assert told(page, "curves") == "Curves: train/loss over updates, 4 groups"
    page.get_by_role("checkbox", name="Logarithmic").check()
    assert drawn.get_attribute("d") != before
    plain = drawn.get_attribute("d")
    slider = page.get_by_role("slider", name="Smoothing")
    slider.focus()
    slider.press("End")
    assert drawn.get_attribute("d") != plain
    expect(page.locator("output")).to_have_text("0.99")


def test_smoothing_is_that_of_wandb(page: Page) -> None:
    """docs.wandb.ai, "Smooth line plots": the time-weighted exponential moving average."""
    scales = (Path(write_page.__code__.co_filename).parent / "scales.js").read_text()
    xs, ys, smoothing = [0, 1, 5, 6, 20], [1.0, 3.0, 2.0, 8.0, 5.0], 0.9
    found = page.evaluate(f"(() => {{ {scales}; return smoothed({xs}, {ys}, {smoothing}, 20); }})()")
    weight, last, debias, expected = min(smoothing**0.5, 0.999), 0.0, 0.0, list[float]()
    for n, y in enumerate(ys):
        adjusted = weight ** ((xs[n] - xs[max(n - 1, 0)]) / 20 * 1000)
        last, debias = last * adjusted + y, debias * adjusted + 1
        expected.append(last / debias)
    assert found == pytest.approx(expected, rel=1e-12)


def test_figures_switch_their_axes_and_groups(page: Page) -> None:
    assert told(page, "heatmap") == "Heat map of two keys: optimizer by scheduler, 6 cells, 2 without a run"
    assert figure(page, "heatmap").get_by_text("no run").count() == 2
    page.get_by_label("Columns", exact=True).select_option("seed")
    assert told(page, "heatmap") == "Heat map of two keys: optimizer by seed, 15 cells, 1 without a run"
    assert figure(page, "heatmap").get_by_text("failed").count() == 2
    assert told(page, "scatter") == "Result over time: 17 runs, 1 on the Pareto front"
    page.get_by_label("Over", exact=True).last.select_option("updates")
    assert "updates" in figure(page, "scatter").locator("text").all_text_contents()
    page.get_by_label("In", exact=True).select_option("seconds")
    assert told(page, "profile") == "Performance profiles: 4 submissions by seconds"
    assert told(page, "parallel") == "Parallel coordinates: 17 runs over 4 axes"
    assert told(page, "importance").startswith("Importance of the keys: optimizer ")
    assert told(page, "schedules") == "Schedules: 1 different courses of optim/lr"
    figure(page, "curves").get_by_role("button", name="optimizer=lion scheduler=wsd").click()
    assert told(page, "curves") == "Curves: val/accuracy over updates, 3 groups"
    assert told(page, "scatter").startswith("Result over time: 14 runs")
    expect(figure(page, "scatter").get_by_role("button", name="optimizer=lion")).to_have_attribute(
        "aria-pressed", "false"
    )


def test_what_lies_under_the_pointer_is_told(page: Page) -> None:
    figure(page, "curves").get_by_role("img").hover(position={"x": 600, "y": 150})
    expect(page.locator("#tip")).to_contain_text(
        re.compile(r"val/accuracy at [\d.]+ updates\n[\d.]+ +optimizer=lion")
    )
    figure(page, "scatter").locator("circle").last.hover()
    expect(page.locator("#tip")).to_contain_text("(finished)")


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_every_figure_is_saved(page: Page, kind: str, tmp_path: Path) -> None:
    figures = page.locator("figure").all()
    assert len(figures) == 8
    for number, found in enumerate(figures):
        with page.expect_download() as waiting:
            found.get_by_role("button", name=re.compile(f"^Save .* as {kind}$")).click()
        saved = tmp_path / f"{number}.{kind.lower()}"
        waiting.value.save_as(saved)
        assert waiting.value.suggested_filename == f"{found.get_attribute('data-figure')}.{kind.lower()}"
        if kind == "PNG":
            with Image.open(saved) as image:
                assert image.width >= 2000
                colours = (
                    image.convert("RGB").resize((image.width // 8, image.height // 8)).getcolors(1 << 20)
                )
                assert len(colours or []) > 20, "something is drawn on it"
        else:
            text = saved.read_text()
            assert text.startswith("<svg")
            assert "var(" not in text, "it stands alone"


def test_it_is_usable_by_keyboard_and_by_screen_readers(page: Page) -> None:
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
    ids = page.eval_on_selector_all("[id]", "found => found.map((e) => e.id)")
    assert len(ids) == len(set(ids))


COLOURS = """[...Array(10).keys()].map((n) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--s${n})`;
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
})"""
"""The colours of the groups, as they are now."""


def luminance(colour: str) -> float:
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_by_the_system_and_by_choice(
    open_page: Callable[..., Page], report: Path, scheme: str
) -> None:
    page = open_page(report, color_scheme=scheme)

    def style(selector: str, field: str) -> str:
        return page.eval_on_selector(selector, f"e => getComputedStyle(e).{field}")

    assert (luminance(style("body", "backgroundColor")) < 0.1) == (scheme == "dark")
    for ink, ground in [("h2", "section#groups"), (".note", "section#groups"), ("#warnings li", "#warnings")]:
        one, other = sorted([luminance(style(ink, "color")), luminance(style(ground, "backgroundColor"))])
        assert (other + 0.05) / (one + 0.05) >= 4.5, f"{ink} cannot be read"
    lines = page.evaluate(COLOURS)
    assert len(set(lines)) == 10
    for colour in lines:  # need less contrast than text
        one, other = sorted([luminance(colour), luminance(style("section#groups", "backgroundColor"))])
        assert (other + 0.05) / (one + 0.05) >= 3, f"{colour} cannot be seen"
    other_scheme = "light" if scheme == "dark" else "dark"
    page.get_by_label("Theme").select_option(other_scheme)
    assert (luminance(style("body", "backgroundColor")) < 0.1) == (other_scheme == "dark")


def test_two_hundred_runs_of_two_thousand_points(open_page: Callable[..., Page], tmp_path: Path) -> None:
    options = {"by": None, "metric": None, "mode": None, "baseline": None, "target": None}
    write_page(compare(many_runs(), **options), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    page.get_by_label("Show", exact=True).select_option("runs")
    assert told(page, "curves") == "Curves: val/accuracy over updates, 200 runs"
    assert figure(page, "curves").locator("path.line").count() == 200
    points = int(figure(page, "curves").get_by_role("img").get_attribute("data-points") or 0)
    assert 200 * 200 <= points <= NUM_POINTS, "as many as a picture can show"
    expect(
        page.get_by_role("region", name="Curves").get_by_text("the least and the greatest of each interval")
    ).to_be_visible()


def test_a_label_cannot_end_the_script(tmp_path: Path, comparing: Compare) -> None:
    evil = "</script><script>alert(1)</script><!--"
    write_run(tmp_path / "a", {"scheduler.warmup": evil}, 0.9)
    write_run(tmp_path / "b", {"scheduler.warmup": 0}, 0.9)
    comparison = comparing(tmp_path)
    write_page(comparison, tmp_path / "report.html")
    assert "<script>alert" not in (tmp_path / "report.html").read_text()
    assert evil in [
        label for group in data_of(tmp_path / "report.html")["groups"] for label in group["labels"].values()
    ]


def data_of(report: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', report.read_text(), re.DOTALL
    )
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_made_of_all_its_scripts_and_breaks_out_of_none(report: Path) -> None:
    folder = Path(write_page.__code__.co_filename).parent
    assert sorted(SCRIPTS) == sorted(path.stem for path in folder.glob("*.js"))
    assert all(len(path.read_text().splitlines()) <= 250 for path in folder.iterdir() if path.is_file())
    text = report.read_text()
    assert text.count("</script>") == 2
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert len(data_of(report)["runs"]) == 20
