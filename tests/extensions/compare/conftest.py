"""Runs with known results, comparisons of them, and a page in a browser."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from planted import comparing, write_planted
from playwright.sync_api import Browser, Page

from hydrant.extensions.compare.command import write_page


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with known means and noise, failed and missing runs, and a run of another commit."""
    return write_planted(tmp_path_factory.mktemp("planted") / "sweep")


@pytest.fixture(scope="session")
def report(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(comparing(planted, target="val/accuracy>=0.9", baseline="optimizer=sgd"), path)
    return path


@pytest.fixture(scope="module")
def tabs(browser: Browser) -> Callable[..., tuple[Page, list[str]]]:
    """Return the n-th page with these options and the problems that it has met, the same for all tests of a module.

    A new page takes as long as drawing a report."""

    @cache
    def tab(place: int, **options: str | float) -> tuple[Page, list[str]]:
        page = browser.new_context(offline=True, **options).new_page()  # type: ignore[arg-type]
        problems = list[str]()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.extend([request.url] * request.url.startswith("http")))
        return page, problems

    return tab


@pytest.fixture
def open_page(tabs: Callable[..., tuple[Page, list[str]]]) -> Iterator[Callable[..., Page]]:
    """Open a report as a new reader does. At the end, the console must be empty and no request sent."""
    opened: list[tuple[Page, list[str]]] = []

    def run(path: Path, address: str = "", **options: str | float) -> Page:
        page, problems = tabs(len(opened), **options)
        opened.append((page, problems))
        problems.clear()
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(path.as_uri() + (f"#{address}" if address else ""))
        page.wait_for_selector("html[data-drawn]")
        return page

    yield run
    for page, problems in opened:
        page.evaluate("localStorage.clear()")
        page.mouse.move(0, 0)
        page.goto("about:blank")
        assert problems == []


@pytest.fixture
def page(open_page: Callable[..., Page], report: Path) -> Page:
    return open_page(report)
