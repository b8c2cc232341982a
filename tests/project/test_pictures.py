"""The pictures of README.md and docs/ are those of the commands on their pages and of the code that draws them now."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "pictures"))
PICTURES: dict[str, Any] = SCRIPT["pictures"]()
IMAGES: Path = SCRIPT["IMAGES"]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("examples/*/RESULTS.md")),
]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_not_older_than_what_draws_it(name: str) -> None:
    recorded = json.loads((IMAGES / "digests.json").read_text())
    new = PICTURES[name].digest(IMAGES / name)
    assert recorded.get(name) == new, f"make it again: uv run --group dev scripts/pictures {name}"


@pytest.mark.parametrize("name", PICTURES)
def test_the_page_of_a_picture_has_its_commands(name: str) -> None:
    text = " ".join((ROOT / PICTURES[name].page).read_text().replace("\\\n", " ").split())
    assert re.search(rf"!\[[^\]]+\]\([\w./]*images/{re.escape(name)}\)", text)
    for command in PICTURES[name].commands:
        assert command in text


def test_every_picture_that_a_page_shows_is_made_by_the_script() -> None:
    shown = {
        name for page in PAGES for name in re.findall(r"!\[[^\]]*\]\([^)]*images/([^)]+)\)", page.read_text())
    }
    assert shown == PICTURES.keys()
    assert {file.name for file in IMAGES.iterdir()} == {*PICTURES, "digests.json"}


def test_the_digest_ignores_comments_and_docstrings(tmp_path: Path) -> None:
    file, digests = tmp_path / "code.py", list[bytes]()
    for text in ('"""A."""\n\nx = f(1,\n  2)  # one\n', '"""B."""\nx = f(1, 2)\n', '"""B."""\nx = f(1, 3)\n'):
        file.write_text(text)
        digests.append(SCRIPT["content"](file))
    assert digests[0] == digests[1] != digests[2]


def test_a_picture_of_the_terminal_loads_nothing_and_is_what_remains_visible(tmp_path: Path) -> None:
    shown = SCRIPT["visible"]("bar 10%\r\n\x1b[1A\x1b[2Kline\r\nold\r\x1b[K\x1b[31mbar\x1b[0m 100%\r\n")
    assert shown == "line\n\x1b[31mbar\x1b[0m 100%"
    SCRIPT["terminal"](tmp_path, shown, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert "100%" in text.replace("&#160;", " ")
    assert set(re.findall(r"https?://[^\"' )]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }
