"""A trained run for the commands that read one, and a browser for the pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def trained(train: Callable[..., Path]) -> Path:
    """The folder of a convolutional network after 12 updates, with the checkpoints of updates 6 and 12."""
    words = ("tracker=local", "duration=12", "log_every=1", "eval_every=6", "save_every=6")
    return train(*words, "model=convnet", "model.widths=[8,16]", "keep_last=5")


@pytest.fixture(scope="module")  # not for longer: this thread has a running event loop meanwhile
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # not everywhere where other tests of commands run

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_playwright() as playwright:
        # The sandbox cannot start as root, as in a container. The page is trusted.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
