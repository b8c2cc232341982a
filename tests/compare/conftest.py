"""Planted runs, comparisons of them, and the page of one in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from planted import write_planted
from playwright.sync_api import Browser, Page, sync_playwright

from hydrant.compare.comparison import Comparison, compare
from hydrant.compare.page import write_page
from hydrant.compare.sources import read_runs
from hydrant.compare.targets import parse_target

Compare = Callable[..., Comparison]


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with known means and noise, failed and missing runs, and one of another commit."""
    return write_planted(tmp_path_factory.mktemp("planted") / "sweep")


@pytest.fixture(scope="session")
def comparing() -> Compare:
    def run(*words: Path | str, target: str | None = None, **options: Any) -> Comparison:
        given = {"by": None, "metric": None, "mode": None, "baseline": None} | options
        aim = None if target is None else parse_target(target)
        return compare(read_runs([str(word) for word in words]), target=aim, **given)

    return run


@pytest.fixture(scope="module")  # while it is open, this thread has a running event loop
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_playwright() as playwright:
        # As root, as in a container, its sandbox cannot start; the page is our own.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(planted: Path, comparing: Compare, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(
        comparing(planted, target="val/accuracy>=0.9", baseline="optimizer=sgd", price_per_hour=3600.0), path
    )
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
