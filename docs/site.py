"""Additions to MkDocs for the documentation site.

- The hooks `on_files` and `on_page_markdown`: links from docs/ to other files of the repository, such as
  conf/train.yaml, work on the site. Each linked file becomes a page in `repository/`, which search shows after all
  others. A link to a folder becomes text. Commands have a tab for a checkout and one for an installed Hydrant.
- The hook `on_post_build`: `llms.txt` tells programs that read the site what each page is about.
- The Griffe extension `Doctests`: examples in docstrings are shown as code, and the names that `lazy_exports` gives a
  package are found.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCTEST = re.compile(r"^ *>>> .*\n?(?:^ *\S.*\n?)*", re.MULTILINE)
COMMANDS = re.compile(r"^```bash\n.*?^```\n", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BOOSTS = {"start": 3, "tutorials": 2, "guides": 2, "internals": 0.3, "repository": 0.1}
"""How much search prefers a folder's pages."""

ANY_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
IMAGE = re.compile(r"(!\[[^\]]*\])\(([^):\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each linked file outside of docs/, and for the files that those link to."""
    pages = {f"docs/{page.src_uri}": page.content_string for page in files.documentation_pages()}
    queue = list(pages.items())
    while queue:
        origin, text = queue.pop()
        for path in {resolve(origin, target) for _, target in IMAGE.findall(text)}:
            if not path.startswith("docs/") and (ROOT / path).is_file():
                files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
        for _, target, _ in LINK.findall(text):
            path = resolve(origin, target)
            if path in pages or path.startswith("docs/") or not (ROOT / path).is_file():
                continue
            content = (ROOT / path).read_text(encoding="utf-8")
            if not path.endswith(".md"):
                content = f"# {path}\n\n```{Path(path).suffix.removeprefix('.')}\n{content}```\n"
            pages[path] = content
            queue.append((path, content))
            files.append(File.generated(config, page_uri(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point each relative link at the page of its file."""
    uri: str = page.file.src_uri
    origin = uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"

    def rewrite(match: re.Match[str]) -> str:
        text, target, anchor = match[1], page_uri(resolve(origin, match[2])), match[3] or ""
        if match[2].endswith(".md") or files.get_file_from_path(target):
            return f"[{text}]({posixpath.relpath(target, posixpath.dirname(uri))}{anchor})"
        return text

    def place_image(match: re.Match[str]) -> str:
        path = resolve(origin, match[2])
        target = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
        return f"{match[1]}({posixpath.relpath(target, posixpath.dirname(uri))})"

    markdown = IMAGE.sub(place_image, markdown)
    page.meta.setdefault("search", {"boost": BOOSTS.get(uri.partition("/")[0], 1)})
    return COMMANDS.sub(in_tabs, LINK.sub(rewrite, markdown))


def on_post_build(config: Any) -> None:
    """Write llms.txt into the site."""
    (Path(config.site_dir) / "llms.txt").write_text(overview(config.nav), encoding="utf-8")


def overview(nav: list[Any]) -> str:
    """Return the text of llms.txt (llmstxt.org): the title, a sentence, and the pages with their first sentences."""
    title, sentence = title_and_sentence("README.md")
    parts = [f"# {title}", f"> {sentence}"]
    for section in nav:
        for name, entries in section.items():
            lines = [f"- [{title}]({link_of(uri)}): {sentence}".removesuffix(": ")
                     for uri in uris_in(entries) for title, sentence in [title_and_sentence(uri)]]  # fmt: skip
            parts += [f"## {name}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def uris_in(entry: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation, in its order."""
    if isinstance(entry, str):
        yield entry
        return
    for inner in entry.values() if isinstance(entry, dict) else entry:
        yield from uris_in(inner)


def link_of(uri: str) -> str:
    """Return the address of a page in the site."""
    return re.sub(r"(^|/)README$", r"\1index", uri.removesuffix(".md")) + ".html"


def title_and_sentence(uri: str) -> tuple[str, str]:
    """Return the title of a page and its first sentence; "" if it begins with no text."""
    path = ROOT / uri.removeprefix("repository/") if uri.startswith("repository/") else ROOT / "docs" / uri
    title, *blocks = re.split(r"\n{2,}", FENCED.sub("", path.read_text(encoding="utf-8")).strip())
    texts = [" ".join(block.split()) for block in blocks if not re.match(r"[#|!:<-]", block)]
    sentence = re.split(r"(?<=[.?!])\s+(?=[A-Z\"`\[])", ANY_LINK.sub(r"\1", texts[0]))[0] if texts else ""
    return title.partition("\n")[0].removeprefix("# "), re.sub(":$", ".", sentence)


def in_tabs(match: re.Match[str]) -> str:
    """Return a block of commands in two tabs, if a command is called otherwise where Hydrant is installed."""
    block = match[0]
    installed = block.replace("uv run train.py", "hydrant train").replace("uv run hydrant", "hydrant")
    installed = re.sub(r"python3 -m venv .*pip install uv\n", "", installed)
    if installed == block or installed == "```bash\n```\n":
        return block
    tabs = {"in a checkout, with uv": block, "installed": installed}
    return "\n".join(f'=== "{name}"\n\n{textwrap.indent(text, "    ")}' for name, text in tabs.items())


def resolve(origin: str, target: str) -> str:
    """Return the path in the repository of a link's target."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def page_uri(path: str) -> str:
    """Return the path in the site's sources of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


class Doctests(griffe.Extension):
    """Puts the doctests of every docstring into code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(
                lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", obj.docstring.value
            )
