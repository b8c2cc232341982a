"""Runs with known results, comparisons of them, and a page in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from planted import Compare, write_planted
from playwright.sync_api import Browser, Page

from hydrant.extensions.compare.comparison import Comparison, compare
from hydrant.extensions.compare.html_page import write_page
from hydrant.extensions.compare.sources import Question, read_runs


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with known means and noise, failed and missing runs, and a run of another commit."""
    return write_planted(tmp_path_factory.mktemp("planted") / "sweep")


@pytest.fixture(scope="session")
def comparing() -> Compare:
    def run(*words: Path | str, **options: Any) -> Comparison:
        question = Question(**options)
        return compare(read_runs([str(word) for word in words], question.varied), question)

    return run


@pytest.fixture(scope="session")
def report(planted: Path, comparing: Compare, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(comparing(planted, target="val/accuracy>=0.9", baseline="optimizer=sgd"), path)
    return path


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a report. At the end, the console must be empty and no request sent."""
    problems: list[str] = []
    contexts = []

    def run(path: Path, address: str = "", **options: str | float) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: problems.append(request.url) if request.url.startswith("http") else None,
        )
        page.goto(path.as_uri() + (f"#{address}" if address else ""))
        page.wait_for_selector("html[data-drawn]")
        return page

    yield run
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def page(open_page: Callable[..., Page], report: Path) -> Page:
    return open_page(report)
