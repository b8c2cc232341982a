"""`hydrant compare --html FILE --follow`: a page that is written again while runs train, and loads itself again."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from planted import write_run
from playwright.sync_api import Page, expect
from reports import column, data_of

from hydrant import cli
from hydrant.extensions.compare import command as follow_module
from hydrant.extensions.compare.sources import Question
from hydrant.runs.lock import exclusive


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
