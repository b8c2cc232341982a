"""The figures of the page of `hydrant compare`, in Chromium."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marks import slow
from PIL import Image
from planted import comparing, many_runs, write_run
from playwright.sync_api import Browser, Page, expect
from reports import description, figure

from hydrant.extensions.compare.command import MAX_POINTS, curves, write_page
from hydrant.extensions.compare.comparison import compare
from hydrant.extensions.compare.serialize import to_text
from hydrant.extensions.compare.sources import Question
from hydrant.terminal.text import digits_of, number


@pytest.mark.slow
def test_curves_of_one_run_have_its_name(open_page: Callable[..., Page], tmp_path: Path) -> None:
    write_run(tmp_path / "first", {"optimizer": "adamw"}, 0.9)
    write_page(comparing(tmp_path), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    assert figure(page, "curves").locator("path.line").count() == 1
    expect(page.get_by_label("Show", exact=True)).to_have_count(0)
    text = page.locator("main").inner_text()
    assert "first" in text
    assert "all runs" not in text
    assert "mean" not in text
    assert description(page, "curves").startswith("Curves: val/accuracy over updates, 1 run")


@pytest.mark.parametrize("size", [1e6, *slow(-1e6, 1e-7, 0.3)])
def test_small_differences_of_values_of_any_size_are_shown(
    size: float, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    """Such as log likelihoods: numbers, ticks and curves would be equal if all had four or five digits."""
    planted = {seed: [size * (1 + (seed + n) * 1e-6) for n in (1, 4, 3, 2)] for seed in range(3)}
    for seed, values in planted.items():
        write_run(tmp_path / str(seed), {"seed": seed}, None, values=values, total_updates=10_000_020)
    comparison = comparing(tmp_path)
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    for seed, curve in enumerate(curves(comparison)["runs"]["val/accuracy"]):
        assert curve["v"] == pytest.approx(planted[seed], rel=1e-9)
    ticks = figure(page, "curves").locator("text.end").all_text_contents()
    assert len(set(ticks)) == len(ticks) > 2
    assert [float(tick.replace(",", "")) for tick in ticks] == pytest.approx([size] * len(ticks), rel=1e-5)
    results = page.locator("#runs-table tbody tr td:nth-child(4)").all_text_contents()
    assert len(set(results)) == 3
    assert page.locator("#runs-table tbody tr td:nth-child(3)").first.inner_text() == "10,000,020"
    shown = to_text(comparison, None)
    assert all(number(values[-1], 7) in shown for values in planted.values())


@pytest.mark.slow
def test_curves_change_their_unit_metric_scale_and_smoothing(page: Page) -> None:
    assert description(page, "curves").startswith("Curves: val/accuracy over updates, 4 groups")
    line = figure(page, "curves").locator("path.line").first
    initial = line.get_attribute("d")
    for unit, last in {"samples": "6,000", "seconds": "1"}.items():
        page.get_by_label("Over", exact=True).first.select_option(unit)
        assert description(page, "curves").startswith(f"Curves: val/accuracy over {unit}, 4 groups")
        assert last in figure(page, "curves").locator("text").all_text_contents()
    page.get_by_label("Over", exact=True).first.select_option("updates")
    assert line.get_attribute("d") == initial
    page.get_by_label("Metric", exact=True).select_option("train/loss")
    assert description(page, "curves").startswith("Curves: train/loss over updates, 4 groups")
    page.get_by_role("checkbox", name="Logarithmic").check()
    assert line.get_attribute("d") != initial
    rough = line.get_attribute("d")
    slider = page.get_by_role("slider", name="Smoothing")
    slider.focus()
    slider.press("End")
    assert line.get_attribute("d") != rough
    expect(page.locator("output")).to_have_text("0.99")


def test_curves_begin_where_they_can_be_told_apart(page: Page) -> None:
    """The untrained model is at 0 and all groups end between 0.9 and 0.97: all of it is drawn on request only."""
    lines = figure(page, "curves").locator("path.line")

    def drawn_distance() -> float:
        """Return how far apart the last points of the best and the worst group are, relative to the plot."""
        ends = lines.evaluate_all("ps => ps.map(p => p.getPointAtLength(p.getTotalLength()).y)")
        clip = figure(page, "curves").locator("clipPath rect")
        return (max(ends) - min(ends)) / float(clip.get_attribute("height") or 0)

    assert description(page, "curves") == "Curves: val/accuracy over updates, 4 groups, from 50"
    assert drawn_distance() > 0.2
    page.get_by_role("checkbox", name="From the start").check()
    assert description(page, "curves") == "Curves: val/accuracy over updates, 4 groups"
    assert drawn_distance() < 0.1
    assert "0" in figure(page, "curves").locator("text").all_text_contents()


@pytest.mark.slow
def test_the_beginning_of_curves(scripted: Callable[[str], Any]) -> None:
    steep, tail = [0.0, 8.0, 9.0, 9.2, 9.4], [0.0, 7.6, 8.6, 8.9, 9.0]
    for first, second, expected in (
        (steep, tail, 2),
        ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], 0),  # apart from the start
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4.01], 2),  # hardly ever: half of the axis stays
        ([0, 1, 2, 3, 4], [None] * 5, 0),  # a single curve
        ([None] * 5, [None] * 5, 0),
    ):
        lines = json.dumps([{"x": [0, 1, 2, 3, 4], "y": y} for y in (first, second)])
        assert scripted(f"beginning({lines})") == expected


@pytest.fixture(scope="module")
def scripted(browser: Browser) -> Callable[[str], Any]:
    """Return the value of an expression that uses scales.js and dom.js."""
    folder = Path(write_page.__code__.co_filename).with_name("page")
    text, page = (folder / "scales.js").read_text() + (folder / "dom.js").read_text(), browser.new_page()
    return lambda expression: page.evaluate(f"(() => {{ {text}; return {expression}; }})()")


CLOSE = [
    [0.97, 0.96, None],
    [0.9000001, 0.9000003],
    [0.3123451, 0.3123465, 0.3123481, 1e3],
    [0.3, 0.1 + 0.2],
    [0.5],
    [],
]


@pytest.mark.parametrize("values", CLOSE)
def test_the_page_tells_numbers_apart_as_the_tables_do(
    values: list[float | None], scripted: Callable[[str], Any]
) -> None:
    digits, written = digits_of(values), json.dumps(values)
    assert scripted(f"digitsOf({written})") == digits
    shown = scripted(f"{written}.map((value) => number(value, {digits}))")
    expected = [number(value, digits).replace("-", "\N{EN DASH}") for value in values]
    assert [text.replace(",", "") for text in shown] == expected


def test_numbers_just_below_a_power_of_ten_are_plain(scripted: Callable[[str], Any]) -> None:
    values = "[9999.6, 99999.96, 999999, 0.000099999, 1234567.5]"
    shown = scripted(f"{values}.map((value) => number(value))")
    assert shown == ["10,000", "100,000", "999,999", "0.0001", "1.235e6"]


def test_an_axis_of_any_range_has_few_ticks(scripted: Callable[[str], Any]) -> None:
    """A reader may enlarge until a range holds two neighbouring numbers."""
    near = (69.13222796102939, 69.1322279610294)
    for low, high in (near, (1e300, 2e300), (5e-324, 1e-323), (2, 1), (0, 0)):
        assert len(scripted(f"linearTicks({low}, {high}, 8)")) <= 10
    assert scripted("linearTicks(-0.3, 0.31, 7)") == [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3]


def test_interpolation_stops_at_gaps(scripted: Callable[[str], Any]) -> None:
    xs, ys = [0, 10, 20, 30, 40], "[0.1, 0.5, null, 0.8, 0.9]"
    for at, expected in {5: 0.3, 10: 0.5, 13: None, 20: None, 28: None, 30: 0.8, 35: 0.85, 41: None}.items():
        value = scripted(f"interpolate({xs}, {ys}, {at})")
        assert value == (None if expected is None else pytest.approx(expected))


def test_smoothing_equals_that_of_wandb(scripted: Callable[[str], Any]) -> None:
    """docs.wandb.ai, "Smooth line plots": the time-weighted exponential moving average."""
    xs, ys, smoothing = [0, 1, 5, 6, 20], [1.0, 3.0, 2.0, 8.0, 5.0], 0.9
    values = scripted(f"smoothed({xs}, {ys}, {smoothing}, 20)")
    weight, last, debias, expected = min(smoothing**0.5, 0.999), 0.0, 0.0, list[float]()
    for n, y in enumerate(ys):
        adjusted = weight ** ((xs[n] - xs[max(n - 1, 0)]) / 20 * 1000)
        last, debias = last * adjusted + y, debias * adjusted + 1
        expected.append(last / debias)
    assert values == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_figures_switch_their_axes_and_groups(page: Page) -> None:
    assert (
        description(page, "heatmap")
        == "Heat map of two keys: optimizer by scheduler, 6 cells, 2 without a run"
    )
    assert figure(page, "heatmap").get_by_text("no run").count() == 2
    page.get_by_label("Columns", exact=True).select_option("seed")
    assert (
        description(page, "heatmap") == "Heat map of two keys: optimizer by seed, 15 cells, 1 without a run"
    )
    assert figure(page, "heatmap").get_by_text("failed").count() == 2
    assert description(page, "scatter") == "Result over time: 17 runs, 1 on the Pareto front"
    page.get_by_label("Over", exact=True).last.select_option("updates")
    assert "updates" in figure(page, "scatter").locator("text").all_text_contents()
    page.get_by_label("In", exact=True).select_option("seconds")
    assert description(page, "profile") == "Performance profiles: 4 submissions by seconds"
    assert description(page, "parallel") == "Parallel coordinates: 17 runs over 4 axes"
    assert description(page, "schedules") == "Schedules: 1 different schedules of optim/lr"
    figure(page, "curves").get_by_role("button", name="optimizer=lion scheduler=wsd").click()
    assert description(page, "curves").startswith("Curves: val/accuracy over updates, 3 groups")
    assert description(page, "scatter").startswith("Result over time: 14 runs")
    expect(figure(page, "scatter").get_by_role("button", name="optimizer=lion")).to_have_attribute(
        "aria-pressed", "false"
    )


@pytest.mark.slow
def test_the_tip_shows_the_values_at_the_pointer(page: Page) -> None:
    figure(page, "curves").get_by_role("img").hover(position={"x": 600, "y": 150})
    expect(page.locator("#tip")).to_contain_text(
        re.compile(r"val/accuracy, updates [\d.]+\n[\d.]+ +optimizer=lion")
    )
    page.get_by_label("Metric", exact=True).select_option("train/loss")
    figure(page, "curves").get_by_role("img").hover(position={"x": 600, "y": 150})
    lines = page.locator("#tip").inner_text().splitlines()[1:]
    assert len(lines) == 4
    losses = [float(line.split()[0]) for line in lines]
    assert losses == sorted(losses), "the smallest loss first, although more accuracy is better"
    figure(page, "scatter").locator("circle").last.hover()
    expect(page.locator("#tip")).to_contain_text("(finished)")


@pytest.mark.slow
def test_filtered_runs_are_not_shown_as_missing(page: Page) -> None:
    page.get_by_role("searchbox", name="Filter runs").fill("optimizer=adamw")
    assert description(page, "heatmap").endswith(
        "optimizer by scheduler, 6 cells, 2 without a run, 2 filtered out"
    )
    assert figure(page, "heatmap").get_by_text("no run").count() == 2
    figure(page, "heatmap").locator('[data-tip*="filtered out"]').first.hover()
    expect(page.locator("#tip")).to_contain_text("filtered out")


def test_schedules_are_shown_as_logged(open_page: Callable[..., Page], tmp_path: Path) -> None:
    """A single logged point is a dot."""
    for name, scheduler in {"a": "cosine", "b": "wsd", "c": "linear"}.items():
        folder = write_run(tmp_path / name, {"scheduler": scheduler}, 0.9, num_rows=2)
        if name != "c":
            rows = [{"num_updates": n, "optim/lr": 1 / n, "optim/weight_decay": 1} for n in (1, 10, 99)]
            rows = [*rows, {"num_updates": 100, "val/accuracy": 0.9}]
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    comparison = comparing(tmp_path)
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    assert description(page, "schedules") == "Schedules: 2 different schedules of optim/lr"
    assert figure(page, "schedules").locator("circle").count() == 1
    assert figure(page, "schedules").get_by_text("scheduler=cosine + 1 more").count() == 1
    page.get_by_label("Field", exact=True).select_option("optim/weight_decay")
    assert description(page, "schedules") == "Schedules: 1 different schedules of optim/weight_decay"


@pytest.mark.slow
def test_names_do_not_overlap_on_a_narrow_screen(open_page: Callable[..., Page], report: Path) -> None:
    page = open_page(report)
    page.set_viewport_size({"width": 390, "height": 800})
    names = figure(page, "groups").locator("text").all_text_contents()
    assert {"optimizer=adamw scheduler=cosine", "optimizer=adamw scheduler=wsd"} <= set(names)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    titles = figure(page, "parallel").locator("text.strong")
    boxes = [titles.nth(n).bounding_box() for n in range(titles.count())]
    for box in boxes:
        others = [other for other in boxes if other is not box]
        assert box is not None
        assert not any(
            other is not None
            and abs(box["y"] - other["y"]) < box["height"]
            and box["x"] < other["x"] + other["width"]
            and other["x"] < box["x"] + box["width"]
            for other in others
        )


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
def test_no_line_of_the_parallel_coordinates_crosses_a_label(
    open_page: Callable[..., Page], report: Path, width: int
) -> None:
    page = open_page(report)
    page.set_viewport_size({"width": width, "height": 900})
    parallel = figure(page, "parallel")
    labels = parallel.locator("text").evaluate_all(
        "labels => labels.map(l => l.getBBox()).map(b => [b.x, b.y, b.x + b.width, b.y + b.height])"
    )
    points = parallel.locator("path.line").evaluate_all(
        "paths => paths.flatMap(path => path.getAttribute('d').match(/M[^M]+/g).flatMap(piece => {"
        " const [x1, y1, x2, y2] = piece.match(/[\\d.]+/g).map(Number);"
        " return [...Array(51).keys()].map(n => [x1 + (x2 - x1) * n / 50, y1 + (y2 - y1) * n / 50]); }))"
    )
    assert len(points) == 17 * 3 * 51
    for left, top, right, bottom in labels:
        assert not any(left <= x <= right and top <= y <= bottom for x, y in points)
    assert all(left >= 0 and right <= width for left, _, right, _ in labels)


@pytest.mark.slow
def test_bars_show_what_the_colours_mean(page: Page) -> None:
    """The line of the best run has the colour at the top of the axis of the result, that of the worst the one below."""
    stops = figure(page, "parallel").locator("linearGradient stop")
    colours = stops.evaluate_all("stops => stops.map(stop => stop.getAttribute('stop-color'))")
    lines = figure(page, "parallel").locator("path.line")
    strokes = lines.evaluate_all("paths => paths.map(path => path.getAttribute('style').slice(7))")
    assert (strokes[0], strokes[-1]) == (colours[0], colours[-1]), "the best run is drawn last"
    heatmap = figure(page, "heatmap")
    cells = heatmap.locator("rect.cell").evaluate_all(
        "cells => cells.map(c => c.getAttribute('style').slice(5))"
    )
    ends = heatmap.locator("stop").evaluate_all("stops => stops.map(stop => stop.getAttribute('stop-color'))")
    assert {ends[0], ends[-1]} <= set(cells), "the colours of the worst and the best cell"
    assert {"0.9001", "0.9704"} <= set(heatmap.locator("text.soft").all_text_contents())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_every_figure_is_saved(page: Page, kind: str, tmp_path: Path) -> None:
    figures = page.locator("figure").all()
    assert len(figures) == 8
    for place, holder in enumerate(figures):
        with page.expect_download() as waiting:
            holder.get_by_role("button", name=re.compile(f"^Save .* as {kind}$")).click()
        saved = tmp_path / f"{place}.{kind.lower()}"
        waiting.value.save_as(saved)
        assert waiting.value.suggested_filename == f"{holder.get_attribute('data-figure')}.{kind.lower()}"
        if kind == "PNG":
            with Image.open(saved) as image:
                assert image.width >= 2000
                colours = (
                    image.convert("RGB").resize((image.width // 8, image.height // 8)).getcolors(1 << 20)
                )
                assert len(colours or []) > 20, "the picture is not empty"
        else:
            text = saved.read_text()
            assert text.startswith("<svg")
            assert "var(" not in text, "no variables of the page"


@pytest.mark.slow
def test_many_long_curves_are_thinned(open_page: Callable[..., Page], tmp_path: Path) -> None:
    write_page(compare(many_runs(), Question()), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    page.get_by_label("Show", exact=True).select_option("runs")
    assert description(page, "curves").startswith("Curves: val/accuracy over updates, 200 runs")
    assert figure(page, "curves").locator("path.line").count() == 200
    points = int(figure(page, "curves").get_by_role("img").get_attribute("data-points") or 0)
    assert 200 * 90 <= points <= MAX_POINTS, "within the limit of a page"
    expect(
        page.get_by_role("region", name="Curves").get_by_text(
            "reduced to the minimum and maximum of each interval"
        )
    ).to_be_visible()
