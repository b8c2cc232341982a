"""`docs`: print pages of the documentation or sections of them, or the names of all pages. The wheel has the pages."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydrant.checks import nearest, unknown_name
from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError
from hydrant.terminal.console import emit, tell


def main(arguments: Sequence[str]) -> int:
    """Print pages and return the exit status."""
    _, words = Flags("docs").split(arguments)
    pages = page_files()
    if not pages:
        remedy = "install Hydrant from its wheel or its repository"
        raise ConfigError("", "this installation has no pages", remedy=remedy)
    texts = {name: text for word in words for name, text in [_text_of(word, pages)]}
    if words:
        tell("\n\n".join(texts.values()), {"pages": texts}, emit)
        return 0
    first_lines = {n: file.read_text(encoding="utf-8").partition("\n")[0] for n, file in pages.items()}
    titles, width = {n: line.removeprefix("# ") for n, line in first_lines.items()}, max(map(len, pages))
    tell("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()), {"titles": titles}, emit)
    return 0


def page_files() -> dict[str, Path]:
    """Return the file of each page by its name, such as `guides/sweeps`."""
    package = Path(__file__).parents[1]
    folder = package / "docs" if (package / "docs").is_dir() else package.parents[1] / "docs"
    files = sorted(folder.rglob("*.md"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def _text_of(word: str, pages: dict[str, Path]) -> tuple[str, str]:
    """Return the name and the text of a page, of a section after `#`, or of the list of sections after a bare `#`.

    Raises:
        ConfigError: there is none, or there are several.
    """
    page, mark, section = word.partition("#")
    name = _name_of(page, pages)
    text = pages[name].read_text(encoding="utf-8").rstrip()
    if not mark:
        return name, text
    sections = _sections(text)
    if not section:
        return f"{name}#", "\n".join(f"{page}#{title}" for title in sections)
    if section not in sections:
        raise unknown_name("", "section", section, sections)
    return f"{name}#{section}", sections[section]


def _sections(text: str) -> dict[str, str]:
    """Return the sections of a page by their anchors, each with those below it.

    >>> _sections("# A\\n\\n## B c\\n\\n### D\\n\\n## E")
    {'a': '# A\\n\\n## B c\\n\\n### D\\n\\n## E', 'b-c': '## B c\\n\\n### D', 'd': '### D', 'e': '## E'}
    """
    code = [m.span() for m in re.finditer(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL)]
    headings = [
        (found.start(), len(found[1]), found[2])
        for found in re.finditer(r"^(#+) (.+)$", text, flags=re.MULTILINE)
        if not any(start < found.start() < end for start, end in code)
    ]
    sections = dict[str, str]()
    for n, (start, level, title) in enumerate(headings):
        end = next((place for place, other, _ in headings[n + 1 :] if other <= level), len(text))
        sections[re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")] = text[start:end].rstrip()
    return sections


def _name_of(word: str, pages: dict[str, Path]) -> str:
    """Return the name of the page that a word means: its path, with or without `docs/` and `.md`, or its last part.

    Raises:
        ConfigError: there is none, or there are several.
    """
    name = word.removeprefix("docs/").removesuffix(".md")
    found = [name] if name in pages else [page for page in pages if page.rpartition("/")[2] == name]
    if len(found) > 1:
        raise ConfigError("", f"{word!r} may be {' or '.join(found)}", remedy="give one of them")
    if not found:
        raise _unknown_page(name, pages)
    return found[0]


_MIN_LETTERS = 3
"""Shorter words are on every page."""


def _unknown_page(name: str, pages: dict[str, Path]) -> ConfigError:
    """Return the error for a word that names no page: the similar names, and the pages with most of the word."""
    similar = nearest(name, [page.rpartition("/")[2] for page in pages])
    word = re.compile(rf"\b{re.escape(name)}", re.IGNORECASE)
    counts = {page: len(word.findall(file.read_text(encoding="utf-8"))) for page, file in pages.items()}
    most = sorted(counts, key=lambda page: -counts[page])[:3]
    about = [page for page in most if counts[page] and len(name) >= _MIN_LETTERS]
    hints = [f"did you mean {' or '.join(similar)}?"] if similar else []
    hints += [f"Pages about it: {', '.join(about)}"] if about else []
    return ConfigError(
        "", f"unknown page {name!r}", remedy=" ".join(hints) or "`hydrant docs` lists all pages"
    )
