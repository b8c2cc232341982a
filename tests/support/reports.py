"""Read the page of `hydrant compare`, in a browser and from its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page


def column(page: Page, title: str, table: str = "runs-table") -> list[str]:
    """Return the texts of a column of a table."""
    titles = [re.sub(r"\s", "", text) for text in page.locator(f"#{table} thead th").all_inner_texts()]
    cells = page.locator(f"#{table} tbody tr > :nth-child({titles.index(title.replace(' ', '')) + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"figure[data-figure={name}]")


def description(page: Page, name: str) -> str:
    """Return the name and description of a figure for screen readers."""
    return figure(page, name).get_by_role("img").get_attribute("aria-label") or ""


def data_of(report: Path) -> dict[str, Any]:
    """Return the data that the scripts of the page show."""
    match = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', report.read_text(), re.DOTALL
    )
    assert match is not None
    return json.loads(match[1])
