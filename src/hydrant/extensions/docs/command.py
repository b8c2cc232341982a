"""`docs`: print pages of the documentation or sections of them, or the names of all pages. The wheel has the pages."""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, UnsetType

from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError, nearest, unknown_name
from hydrant.records import Answer
from hydrant.terminal.console import emit, tell


class Docs(Answer):
    """Pages of the documentation, or the titles of all.

    Attributes:
        pages: The Markdown of each page, by its name.
        titles: The title of each page.
    """

    pages: Mapping[str, str] | UnsetType = UNSET
    titles: Mapping[str, str] | UnsetType = UNSET


def main(arguments: Sequence[str]) -> int:
    """Print pages and return the exit status."""
    _, words = Flags("docs").split(arguments)
    pages = page_files()
    names = [_name_of(word, pages) for word in words]
    if words and None not in names:
        texts = dict(_text_of(word, name, pages) for word, name in zip(words, names, strict=True) if name)
        tell("\n\n".join(texts.values()), {"pages": texts}, emit)
        return 0
    listed = _pages_about(words, pages) if words else list(pages)
    titles = {name: _title(pages[name].read_text(encoding="utf-8")) for name in listed}
    width = max(map(len, titles))
    tell("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()), {"titles": titles}, emit)
    return 0


def page_files() -> dict[str, Path]:
    """Return the file of each page by its name, such as `guides/sweeps`."""
    package = Path(__file__).parents[2]
    folder = package / "docs" if (package / "docs").is_dir() else package.parents[1] / "docs"
    files = sorted(folder.rglob("*.md"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def _text_of(word: str, name: str, pages: dict[str, Path]) -> tuple[str, str]:
    """Return the name and the text of a page, of a section after `#`, or of the list of sections after a bare `#`.

    Raises:
        ConfigError: there is no such section.
    """
    page, mark, section = word.partition("#")
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
        (heading.start(), len(heading[1]), heading[2])
        for heading in re.finditer(r"^(#+) (.+)$", text, flags=re.MULTILINE)
        if not any(start < heading.start() < end for start, end in code)
    ]
    sections = dict[str, str]()
    for n, (start, level, title) in enumerate(headings):
        end = next((place for place, other, _ in headings[n + 1 :] if other <= level), len(text))
        sections[re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")] = text[start:end].rstrip()
    return sections


def _name_of(word: str, pages: dict[str, Path]) -> str | None:
    """Return the name of the one page that a word means by its path or its last part, `docs/` and `.md` left out."""
    name = word.partition("#")[0].removeprefix("docs/").removesuffix(".md")
    meant = [name] if name in pages else [page for page in pages if page.rpartition("/")[2] == name]
    return meant[0] if len(meant) == 1 else None


_MOST_PAGES = 5
_MIN_LETTERS = 3
"""Shorter words are on every page."""
_ENDING = re.compile(r"(?<=\w{3})(ings?|le|ility|ed|es|[se])$")
"""What a word is compared without."""


def _pages_about(words: Sequence[str], pages: dict[str, Path]) -> list[str]:
    """Return the pages that have the words, first rare ones. A heading counts again, the title twice, a phrase doubly.

    Raises:
        ConfigError: no page has any.
    """
    stems = [_ENDING.sub("", word) for word in re.findall(r"[\w&]+", " ".join(words))]
    patterns = [re.compile(rf"\b{w}", re.IGNORECASE) for w in stems if len(w) >= _MIN_LETTERS]
    phrase = re.compile(r"\b" + r"\w*\W+".join(stems), re.IGNORECASE)
    texts = {name: file.read_text(encoding="utf-8") for name, file in pages.items() if name != "README"}
    texts = {
        name: text + text.replace("-", "").replace("_", " ") for name, text in texts.items()
    }  # multigpu: multi-GPU
    having = [sum(bool(pattern.search(text)) for text in texts.values()) for pattern in patterns]
    weights = [math.log(1.01 * len(texts) / num) if num else 0.0 for num in having]
    ranks = dict[str, tuple[float, ...]]()
    for name, text in texts.items():
        title = f"{name} {_title(text)}".replace("_", " ")
        parts = (text, "\n".join(re.findall(r"^#+ .*", text, re.MULTILINE)), title, title)
        found = [sum(bool(pattern.search(part)) for part in parts) for pattern in patterns]
        score = sum(map(operator.mul, weights, found)) * (1 + bool(phrase.search(text)))
        is_guide = not name.startswith(("architecture", "internals/", "reference/"))
        ranks[name] = (score, is_guide, sum(len(pattern.findall(text)) for pattern in patterns))
    best = sorted((name for name in ranks if ranks[name][0]), key=ranks.__getitem__, reverse=True)
    if not best:
        similar = nearest(words[0], [page.rpartition("/")[2] for page in pages])
        remedy = f"did you mean {' or '.join(similar)}?" if similar else "`hydrant docs` lists all pages"
        raise ConfigError("", f"no page has {' or '.join(map(repr, words))}", remedy=remedy)
    return best[:_MOST_PAGES]


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")
