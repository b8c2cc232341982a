"""The live page in Chromium: it follows its runs, keeps what the reader does, and shows logs and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from planted import write_run
from playwright.sync_api import Browser, Page, expect
from reports import column
from watching import Watched, watching

ODD = "<img src=x onerror=alert(1)> & 'b' 100%.png"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sweep = tmp_path_factory.mktemp("live") / "sweep"
    for n, name in enumerate(("a", ODD)):
        run = write_run(sweep / name, {"seed": n}, 0.9 + n / 100, status="running" if n else "finished")
        (run / "train.log").write_text("<b>first</b>\nlast line\n")
        (run / "pictures" / "samples").mkdir(parents=True)
        Image.new("RGB", (8, 8), (200, 10 * n, 0)).save(run / "pictures" / "samples" / "update_00000100.png")
    return sweep


@pytest.fixture(scope="module")
def watched(sweep: Path) -> Iterator[Watched]:
    with watching(sweep) as served:
        yield served


@pytest.fixture
def page(browser: Browser, watched: Watched) -> Iterator[Page]:
    """The page, whose console stays empty."""
    context, problems = browser.new_context(viewport={"width": 1280, "height": 900}), list[str]()
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.goto(watched.url)
    expect(page.locator("#live")).to_have_text("Live")
    yield page
    context.close()
    assert problems == []


def test_the_page_follows_the_runs_and_keeps_what_the_reader_does(
    page: Page, watched: Watched, sweep: Path
) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text("val/accuracy of 2 runs")
    box = page.get_by_role("searchbox", name="Filter runs")
    box.fill("seed<5")
    box.evaluate("e => e.setSelectionRange(2, 3)")
    write_run(sweep / "c", {"seed": 2}, 0.95)
    watched.feed.update()
    expect(page.get_by_role("heading", level=1)).to_have_text("val/accuracy of 3 runs")
    expect(page.get_by_text("3 of 3 runs", exact=True)).to_be_visible()
    assert sorted(column(page, "seed")) == ["0", "1", "2"]
    expect(box).to_be_focused()
    expect(box).to_have_value("seed<5")
    assert box.evaluate("e => [e.selectionStart, e.selectionEnd]") == [2, 3]
    summary = sweep / "c" / "summary.json"
    failed = {"status": "failed", "error": {"type": "E", "message": "<i>why</i>"}}
    summary.write_text(json.dumps(json.loads(summary.read_text()) | failed))
    watched.feed.update()
    expect(page.locator("#runs-table td.error", has_text="<i>why</i>")).to_be_visible()


def test_a_click_on_a_run_shows_its_config_pictures_and_log(
    page: Page, watched: Watched, sweep: Path
) -> None:
    page.locator("#runs-table").get_by_role("button", name=ODD).click()
    dialog = page.get_by_role("dialog", name=ODD)
    expect(dialog.get_by_role("row", name="seed 1")).to_be_visible()
    expect(dialog.locator("pre")).to_have_text("<b>first</b>\nlast line\n")
    picture = dialog.get_by_role("img", name="samples of")
    expect(picture).to_be_visible()
    assert picture.evaluate("async e => { await e.decode(); return e.naturalWidth; }") == 8
    (sweep / ODD / "train.log").write_text("more\n")
    with (sweep / ODD / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 130, "val/accuracy": 0.99}\n')
    watched.feed.update()
    expect(dialog.locator("pre")).to_have_text("more\n")
    expect(page.get_by_role("cell", name="0.99").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_a_page_whose_server_ends_says_so(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "a", {"seed": 0}, 0.9)
    context = browser.new_context()
    page = context.new_page()
    with watching(tmp_path) as watched:
        page.goto(watched.url)
        expect(page.locator("#live")).to_have_text("Live")
        watched.feed.end()
    expect(page.locator("#live")).to_contain_text("Not connected to hydrant watch")
    expect(page.get_by_role("heading", level=1)).to_have_text("val/accuracy of 1 run")
    context.close()
