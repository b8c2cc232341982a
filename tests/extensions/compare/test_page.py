"""The page of `hydrant compare` in Chromium, without a network: tables, filter, keyboard, colours."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from planted import Compare, write_run
from playwright.sync_api import Page, expect
from reports import column, data_of, figure

from hydrant.extensions.compare.command import SCRIPTS, write_page

EMPTY = "\N{EN DASH}"  # a missing number


def test_the_page_shows_the_comparison(page: Page, planted: Path, comparing: Compare) -> None:
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


def test_tables_leave_out_empty_columns(
    comparing: Compare, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    for optimizer in ("adamw", "sgd"):
        write_run(tmp_path / optimizer, {"optimizer": optimizer}, 0.9 + len(optimizer) / 100)
    write_page(comparing(tmp_path), tmp_path / "report.html")
    heads = open_page(tmp_path / "report.html").locator("#groups-table thead th").all_inner_texts()
    assert heads == ["optimizer", "n", "mean", "median", "best", "difference"], "without intervals and tests"


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


def test_a_label_cannot_end_the_script(tmp_path: Path, comparing: Compare) -> None:
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
