"""What a reader does with the page: zoom, several metrics, one run or two, brushes, pictures, address; and --follow.

With --follow, the page is written again while runs train, and loads itself again.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from marks import slow
from PIL import Image
from planted import comparing, many_runs, write_run
from playwright.sync_api import Locator, Page, expect
from reports import column, data_of, description, figure, parts_of

from hydrant import cli
from hydrant.extensions.compare import command as follow_module
from hydrant.extensions.compare.command import MAX_BYTES, write_page
from hydrant.extensions.compare.comparison import compare
from hydrant.extensions.compare.sources import Question
from hydrant.runs.lock import exclusive

ONE, OTHER = "optimizer-adamw_scheduler-cosine_seed-0", "optimizer-lion_scheduler-wsd_seed-0"


def drag(page: Page, target: Locator, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag between two places in an element, in shares of its width and height."""
    target.scroll_into_view_if_needed()
    box = target.bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=4)
    page.mouse.up()


@pytest.mark.slow
def test_a_drag_enlarges_and_a_double_click_shows_all(page: Page) -> None:
    curves = figure(page, "curves").get_by_role("img")
    everything = description(page, "curves")
    drag(page, curves, (0.5, 0.5), (0.75, 0.52))
    match = re.search(r"4 groups, ([\d.]+) to ([\d.]+)$", description(page, "curves"))
    assert match is not None
    left, right = float(match[1]), float(match[2])
    assert 70 < left < 76 < right < 90, "the axis goes from 50 to 100"
    drag(page, curves, (0.3, 0.2), (0.6, 0.6))
    page.wait_for_url("**curves.heights**")
    curves.dblclick()
    assert description(page, "curves") == everything
    expect(page.get_by_role("dialog")).to_be_hidden()
    drag(page, curves, (0.5, 0.5), (0.503, 0.5))
    assert description(page, "curves") == everything, "a click is no drag"


@pytest.mark.slow
def test_the_curves_work_by_keyboard_and_the_cursor_stops_at_points(page: Page) -> None:
    stage = page.get_by_role("group", name="Curves. Left and right")
    stage.focus()
    tip = page.locator("#tip")
    for key, updates in (("ArrowRight", 50), ("ArrowRight", 75), ("End", 100), ("ArrowLeft", 75)):
        page.keyboard.press(key)
        expect(tip).to_contain_text(re.compile(rf"^val/accuracy, updates {updates}\n0\.\d+ +optimizer=lion"))
    assert tip.get_attribute("aria-live") == "polite"
    everything = description(page, "curves")
    page.keyboard.press("+")
    assert description(page, "curves").endswith("62.5 to 87.5")
    page.keyboard.press("Escape")
    assert description(page, "curves") == everything
    figure(page, "curves").get_by_role("img").hover(position={"x": 690, "y": 150})
    expect(tip).to_contain_text(re.compile(r"updates 75\n"))
    assert figure(page, "curves").locator("path.points").count() == 4


@pytest.mark.slow
def test_several_metrics_share_one_axis(page: Page) -> None:
    page.get_by_text("and more", exact=True).click()
    page.get_by_role("checkbox", name="train/loss").check()
    page.get_by_role("checkbox", name="optim/lr").check()
    assert description(page, "curves").startswith(
        "Curves: val/accuracy, train/loss, optim/lr over updates, 4 groups"
    )
    assert figure(page, "curves").locator("clipPath").count() == 3
    drag(page, figure(page, "curves").get_by_role("img"), (0.2, 0.2), (0.35, 0.21))
    ticks = (
        "panels => panels.map(p => [...p.querySelectorAll('text.soft.middle')].map(t => t.textContent)"
        ".filter(t => /^[\\d.]+$/.test(t)).join())"
    )
    axes = figure(page, "curves").locator(".stage > svg > g").evaluate_all(ticks)
    assert len(axes) == 3
    assert "50" not in axes[0].split(","), "the start is not shown"
    assert len(set(axes)) == 1, "the zoom is that of all"


@pytest.mark.slow
def test_a_run_opens_alone_and_beside_another_one(page: Page) -> None:
    opener = page.locator("#runs-table").get_by_role("button", name=ONE)
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=ONE)
    keys = dialog.locator("#config-table tbody th")
    expect(dialog.get_by_role("row", name="val/accuracy 0.95", exact=False).first).to_be_visible()
    assert "duration" not in keys.all_inner_texts(), "the keys in which any runs differ"
    dialog.get_by_role("checkbox", name="Only what differs").uncheck()
    expect(dialog.get_by_role("row", name="duration 10ep")).to_be_visible()
    dialog.get_by_role("checkbox", name="Only what differs").check()
    dialog.get_by_label("Beside").select_option(OTHER)
    assert {"optimizer", "scheduler", "optimizer._target_"} <= set(keys.all_inner_texts())
    assert not {"seed", "duration", "state"} & set(keys.all_inner_texts())
    expect(dialog.get_by_role("row", name="optimizer adamw lion")).to_be_visible()
    expect(dialog.locator("pre")).to_have_count(0)
    page.wait_for_url("**beside=**")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_label("Show", exact=True).select_option("runs")
    line = figure(page, "curves").locator("path.line").first
    figure(page, "curves").get_by_role("img").scroll_into_view_if_needed()
    place = line.evaluate(
        "p => { const m = p.getScreenCTM(), q = p.getPointAtLength(p.getTotalLength() - 40);"
        " return [q.x * m.a + m.e, q.y * m.d + m.f]; }"
    )
    page.mouse.move(*place)
    page.mouse.click(*place)
    expect(page.get_by_role("dialog")).to_be_visible()


@pytest.mark.slow
def test_the_address_keeps_the_choices(page: Page, open_page: Callable[..., Page], report: Path) -> None:
    page.get_by_role("searchbox", name="Filter runs").fill("seed<3")
    page.get_by_label("Metric", exact=True).select_option("val/loss")
    page.get_by_role("checkbox", name="Logarithmic").check()
    page.get_by_label("Columns", exact=True).select_option("seed")
    page.get_by_role("columnheader", name="seed").get_by_role("button").click()
    page.get_by_role("columnheader", name="seed").get_by_role("button").click()
    figure(page, "curves").get_by_role("button", name="optimizer=lion").click()
    page.wait_for_url("**hidden=**")
    address = page.url.partition("#")[2]
    later = open_page(report, address=address)
    for shown in (page, later):
        assert column(shown, "seed")[0] == "2"
        expect(shown.get_by_text("12 of 20 runs", exact=True)).to_be_visible()
        assert description(shown, "curves").startswith("Curves: val/loss over updates, 3 groups")
        assert "optimizer by seed" in description(shown, "heatmap")
        expect(shown.get_by_role("checkbox", name="Logarithmic")).to_be_checked()
    page.get_by_role("navigation").get_by_role("link", name="Curves").click()
    assert page.url.partition("#")[2] == address, "the links to sections keep it"


@pytest.mark.parametrize(
    "address",
    [
        'curves.x=[null,{}]&curves.heights={"val/accuracy":3}&brushes={"seed":[null,{}],"x":[1]}&curves.more=[1,{}]'
        "&curves.smoothing=-1",
        *slow(
            'brushes={"seed":null}&curves.smoothing=5&curves.heights={"val/accuracy":[-1e308,1e308]}',
            "curves.metric=nothing&curves.x=[9,1]&curves.smoothing=x&hidden=3&brushes=[]&run=none&filter=%00&sort=none",
            "curves.x=[69.13222796102939,69.1322279610294]",  # a range that is equal but for rounding
            "curves.log=maybe&heatmap.rows=../&beside=%3Cb%3E&curves.show=all&=&&%",
        ),
    ],
)
def test_a_wrong_address_counts_as_none(open_page: Callable[..., Page], report: Path, address: str) -> None:
    page = open_page(report, address=address)
    assert description(page, "curves") == "Curves: val/accuracy over updates, 4 groups, from 50"
    assert page.locator("#runs-table tbody tr").count() in (0, 20)


@pytest.mark.slow
def test_a_brush_shows_only_the_runs_within_it(page: Page) -> None:
    parallel = figure(page, "parallel").get_by_role("img")
    box = parallel.evaluate("s => [s.viewBox.baseVal.width, s.viewBox.baseVal.height]")
    x, top, bottom = 2.5 / 4, 60 / box[1], (box[1] - 24) / box[1]  # the axis of the seeds, 4 at the top
    drag(page, parallel, (x, bottom - 0.45 * (bottom - top)), (x, bottom + 0.02))
    expect(page.get_by_text("8 of 20 runs", exact=True)).to_be_visible()
    assert set(column(page, "seed")) == {"0", "1"}
    assert description(page, "scatter") == "Result over time: 7 runs, 1 on the Pareto front"
    chip = page.get_by_role("button", name="Remove the range of seed")
    drag(page, parallel, (0.5 / 4, top - 0.02), (0.5 / 4, top + 0.02))
    assert set(column(page, "optimizer")) == {"sgd"}, "labels are chosen by name"
    page.get_by_role("button", name="Remove the range of optimizer").click()
    chip.press("Enter")
    expect(page.get_by_text("20 of 20 runs", exact=True)).to_be_visible()
    expect(chip).to_have_count(0)


@pytest.mark.slow
def test_pictures_are_in_the_file_until_it_is_large(open_page: Callable[..., Page], tmp_path: Path) -> None:
    for n in range(3):
        folder = write_run(tmp_path / f"run-{n}", {"seed": n}, 0.9) / "pictures" / "samples"
        folder.mkdir(parents=True)
        for after in (50, 100):
            Image.new("RGB", (after, 10), (80 * n, 0, 0)).save(folder / f"update_{after:08}.png")
        if n == 2:
            with (folder / "update_00000100.png").open("ab") as file:
                file.write(bytes(MAX_BYTES))
    write_page(comparing(tmp_path), tmp_path / "report.html")
    assert len((tmp_path / "report.html").read_bytes()) < MAX_BYTES
    page = open_page(tmp_path / "report.html")
    images = page.get_by_role("region", name="Pictures").get_by_role("img")
    expect(images).to_have_count(2)
    decoded = (
        "async list => { for (const i of list) { i.loading = 'eager'; await i.decode(); }"
        " return list.map(i => i.naturalWidth); }"
    )
    assert images.evaluate_all(decoded) == [100, 100]
    expect(page.get_by_text("1 pictures are too large for this file.")).to_be_visible()
    page.get_by_role("searchbox", name="Filter runs").fill("seed=1")
    expect(images).to_have_count(1)
    images.click()
    expect(page.get_by_role("dialog", name="run-1").get_by_role("img", name="samples of")).to_be_visible()


def test_running_runs_show_their_progress(open_page: Callable[..., Page], tmp_path: Path) -> None:
    for n in range(3):
        run = write_run(
            tmp_path / f"{n}", {"seed": n}, 0.9, status="running" if n else "finished", updates_per_second=2.0
        )
        summary = json.loads((run / "summary.json").read_text()) | {
            "host": "elsewhere",
            "total_updates": 100 + 20 * n * n,
        }
        (run / "summary.json").write_text(json.dumps(summary))
    write_page(comparing(tmp_path), tmp_path / "report.html")
    progress = parts_of(tmp_path / "report.html")["progress"]
    assert [run["seconds_left"] for run in progress["running"]] == [10, 40], "20 and 80 updates at 2 a second"
    page = open_page(tmp_path / "report.html")
    region = page.get_by_role("region", name="Progress").first
    expect(region).to_contain_text("1 of 3 runs have ended, 2 run; about 40 s left")
    assert column(page, "updates", "progress-table") == ["100 of 120", "100 of 180"]
    assert column(page, "timeleft", "progress-table") == ["10 s", "40 s"]


@pytest.mark.slow
def test_a_page_of_500_runs_has_a_megabyte_and_one_of_2000_works(
    open_page: Callable[..., Page], tmp_path: Path
) -> None:
    for num_runs, limit in ((500, 1 << 20), (2000, 3 << 20)):
        path = tmp_path / f"{num_runs}.html"
        write_page(compare(many_runs(num_runs, 500), Question()), path)
        assert path.stat().st_size <= limit
        page = open_page(path)
        expect(page.get_by_text(f"{num_runs} of {num_runs} runs", exact=True)).to_be_visible()
        assert page.locator("#runs-table tbody tr").count() == 500
        page.get_by_role("searchbox", name="Filter runs").fill("seed=3")
        expect(page.get_by_text(f"18 of {num_runs} runs", exact=True)).to_be_visible()
        expect(figure(page, "scatter").locator("circle")).to_have_count(18)


@pytest.mark.parametrize(("width", "scale"), [(390, 1), *slow((1400, 1), (700, 2))])
@pytest.mark.parametrize("scheme", ["dark", *slow("light")])
def test_everything_fits_on_narrow_wide_and_enlarged_screens(
    open_page: Callable[..., Page], report: Path, width: int, scale: int, scheme: str
) -> None:
    """200 % of a screen of 1,400 pixels is a screen of 700."""
    page = open_page(report, color_scheme=scheme, device_scale_factor=scale)
    page.set_viewport_size({"width": width, "height": 800})
    page.get_by_text("and more", exact=True).click()
    page.get_by_role("checkbox", name="val/loss").check()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    menu = page.get_by_role("group", name="More metrics").bounding_box()
    assert menu is not None
    assert menu["x"] >= 0
    assert menu["x"] + menu["width"] <= width
    page.locator("#runs-table").get_by_role("button", name=ONE).click()
    page.get_by_role("dialog").get_by_label("Beside").select_option(OTHER)
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.get_by_role("dialog").evaluate("d => d.scrollWidth - d.clientWidth") <= 1


def log(run: Path, num_updates: int, value: float) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"num_updates": num_updates, "val/accuracy": value}) + "\n")


def finish(run: Path) -> None:
    summary = run / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"status": "finished"}))


@pytest.fixture
def training() -> Iterator[ExitStack]:
    """Holds the locks of the runs that train, until it is closed."""
    with ExitStack() as locks:
        yield locks


def test_the_page_is_written_when_a_run_has_new_rows_until_all_have_ended(
    training: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other look at the files writes it, and no socket is opened."""
    run, page = write_run(tmp_path / "runs" / "a", {"seed": 0}, 0.9, status="running"), tmp_path / "page.html"
    (run / "metrics.jsonl").write_text("")
    training.enter_context(exclusive(run))
    pages, errors = list[str](), list[str]()

    def keep() -> None:
        pages.append(page.read_text() if page.exists() else "")

    def end() -> None:
        finish(run)
        training.close()

    happens = iter([keep, lambda: log(run, 10, 0.5), keep, keep, lambda: log(run, 20, 0.75), keep, end])
    monkeypatch.setattr(follow_module.time, "sleep", lambda seconds: next(happens)())
    monkeypatch.setattr("socket.socket.__init__", lambda *_, **__: errors.append("a socket"))
    written = list[int]()
    write = follow_module.write_page
    monkeypatch.setattr(follow_module, "write_page", lambda *args: (written.append(1), write(*args)))
    assert cli.main(["compare", str(tmp_path / "runs"), "--html", str(page), "--follow"]) == 0
    assert "val/accuracy" in capsys.readouterr().out
    assert errors == []
    assert pages[0] == "", "no metric yet"
    assert 'data-reload="5"' in pages[1] == pages[2] != pages[3]
    assert [data_of(text)["runs"][0]["final"] for text in pages[1:]] == [0.5, 0.5, 0.75]
    assert len(written) == 4, "three while it follows, and the last one of the command"
    assert 'data-reload="0"' in page.read_text()
    assert data_of(page)["runs"][0]["state"] == "finished"
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "page.html"}


def keep_busy(page: Page) -> None:
    """Let the page take the reader for busy, so that no reload falls between two actions of a test."""
    for _ in range(20):
        page.evaluate("dispatchEvent(new Event('compositionstart')); document.isKept = true")
        page.wait_for_timeout(700)  # a reload that had begun has ended
        if page.evaluate("document.isKept"):
            return
    raise AssertionError("the page loads itself again and again")


def test_following_needs_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(tmp_path), "--follow"]) == 2
    assert capsys.readouterr().err.startswith("error: --follow: ")


def test_ctrl_c_leaves_a_page_that_rests(
    training: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, page = write_run(tmp_path / "runs" / "a", {"seed": 0}, 0.9, status="running"), tmp_path / "page.html"
    training.enter_context(exclusive(run))

    def interrupt(seconds: float) -> None:
        assert 'data-reload="5"' in page.read_text()
        raise KeyboardInterrupt

    monkeypatch.setattr(follow_module.time, "sleep", interrupt)
    assert cli.main(["compare", str(run), "--html", str(page), "--follow"]) == 130
    assert 'data-reload="0"' in page.read_text()


def test_a_growing_sweep_in_a_browser(
    training: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Callable[..., Page]
) -> None:
    """The page, a file, follows the runs and keeps the filter, the sorting, the zoom, the focus and the scroll."""
    monkeypatch.setattr(follow_module, "_REST", 0.1)
    monkeypatch.setattr(follow_module, "_SHARE", 0)
    monkeypatch.setattr(follow_module, "_RELOAD", 0.5)
    sweep, report = tmp_path / "sweep", tmp_path / "page.html"
    for n in range(3):
        write_run(sweep / f"{n}", {"seed": n, "optimizer.lr": 0.1 * n}, 0.9 + n / 100)
    run = write_run(sweep / "3", {"seed": 3, "optimizer.lr": 0.3}, 0.5, status="running")
    training.enter_context(exclusive(run))
    thread = threading.Thread(target=follow_module.follow, args=([str(sweep)], Question(), report))
    thread.start()
    while not report.exists():
        time.sleep(0.05)
    page = open_page(report, "sort=seed&descending=true&curves.x=[20,60]")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("val/accuracy of 4 runs")
    expect(page.locator("#live")).to_contain_text("Live")
    keep_busy(page)
    box = page.get_by_role("searchbox", name="Filter runs")
    box.fill("seed<5")
    box.evaluate("e => e.setSelectionRange(2, 3)")
    page.evaluate("scrollTo(0, 400)")
    page.evaluate("dispatchEvent(new Event('compositionend'))")
    for n in (4, 5):
        write_run(sweep / f"{n}", {"seed": n, "optimizer.lr": 0.1 * n}, 0.95)
        expect(heading).to_have_text(f"val/accuracy of {n + 1} runs")
    finish(run)
    training.close()
    thread.join()
    expect(page.locator("#live")).to_be_hidden()  # it rests from now on
    expect(page.locator("#states")).to_contain_text("6 finished")
    assert column(page, "seed") == ["4", "3", "2", "1", "0"]
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    expect(box).to_be_focused()
    expect(box).to_have_value("seed<5")
    assert box.evaluate("e => [e.selectionStart, e.selectionEnd]") == [2, 3]
    assert page.evaluate("scrollY") == 400


@pytest.mark.slow
def test_a_look_rests_sixty_times_its_processor_time(
    training: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So runs take at most a second of it in a minute, however many they are."""
    runs = [write_run(tmp_path / f"{n}", {"seed": n}, 0.9, status="running", num_rows=50) for n in range(20)]
    for run in runs:
        training.enter_context(exclusive(run))
    spent, rested = list[float](), list[float]()
    began = time.process_time()

    def sleep(seconds: float) -> None:
        nonlocal began
        spent.append(time.process_time() - began)
        rested.append(seconds)
        log(runs[len(spent)], 200, 0.5)
        if len(spent) == 5:
            raise KeyboardInterrupt
        began = time.process_time()

    monkeypatch.setattr(follow_module.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        follow_module.follow([str(tmp_path)], Question(), tmp_path / "page.html")
    assert sum(spent[1:]) <= sum(rested[1:]) / 55
