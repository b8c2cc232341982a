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

from hydrant.commands.watch import feed as feed_module

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
    expect(dialog.locator("pre")).to_have_text("more\n")
    assert picture.bounding_box()["width"] <= 480  # type: ignore[index]
    with (sweep / ODD / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 130, "val/accuracy": 0.99}\n')
    watched.feed.update()
    expect(page.get_by_role("cell", name="0.99").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_an_open_run_stays_while_runs_beside_it_come_and_go(
    page: Page, watched: Watched, sweep: Path, tmp_path: Path
) -> None:
    """Figures of replaced data are not drawn again. A run without a picture or a log has an empty place."""
    for n in (3, 4):
        write_run(sweep / f"extra{n}", {"seed": n}, 0.9)
    watched.feed.update()
    page.goto(f"{watched.url}#run=extra3&beside=a")
    dialog = page.get_by_role("dialog", name="extra3")
    expect(dialog.locator("pre")).to_have_text("There is no log.")
    expect(dialog.get_by_text("has no picture samples")).to_be_visible()
    expect(page.locator("#groups figure svg[viewBox]")).to_be_attached()
    for name in ("extra4", "a"):
        (sweep / name).rename(tmp_path / name)
        num = page.locator("#runs-table tbody tr").count()
        watched.feed.update()
        expect(page.locator("#runs-table tbody tr")).to_have_count(num - 1)
        expect(dialog).to_be_visible()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    (tmp_path / "a").rename(sweep / "a")
    watched.feed.update()
    expect(dialog.get_by_text("has no picture samples")).to_be_visible()


def test_a_page_goes_on_after_damaged_data_and_says_when_its_server_ends(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", {"seed": 0}, 0.9)
    context = browser.new_context()
    page = context.new_page()
    with watching(tmp_path) as watched:
        page.goto(watched.url)
        expect(page.locator("#live")).to_have_text("Live")
        with monkeypatch.context() as damaging, page.expect_event("pageerror"):
            damaging.setattr(feed_module, "encoded", lambda part: "damaged")
            write_run(tmp_path / "b", {"seed": 1}, 0.8)
            watched.feed.update()
        watched.feed.update()  # nothing has changed, so only the progress is sent again
        write_run(tmp_path / "c", {"seed": 2}, 0.8)
        watched.feed.update()
        expect(page.get_by_role("heading", level=1)).to_have_text("val/accuracy of 3 runs")
        watched.feed.end()
    expect(page.locator("#live")).to_contain_text("Not connected to hydrant watch")
    expect(page.get_by_role("heading", level=1)).to_have_text("val/accuracy of 3 runs")
    context.close()
