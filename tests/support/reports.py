"""Read the page of `hydrant compare`, in a browser and from its file."""

import base64
import gzip
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


def parts_of(report: Path | str) -> dict[str, Any]:
    """Return the parts of the data of a page, a file or its text, by name."""
    text = report if isinstance(report, str) else report.read_text()
    match = re.search(r'<script type="application/json" id="data"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return {name: decoded(part) for name, part in json.loads(match[1]).items() if name != "version"}


def decoded(part: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(gzip.decompress(base64.b64decode(part)), parse_constant=refuse)


def data_of(report: Path | str) -> dict[str, Any]:
    """Return the comparison that a page shows."""
    return parts_of(report)["comparison"]
