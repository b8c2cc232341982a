"""`llms.txt` of the documentation site. MkDocs, which calls docs/site.py, is no requirement of the tests."""

import importlib.util
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from repository import ROOT


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    for name in ("mkdocs", "mkdocs.structure", "mkdocs.structure.files"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(File=object, Files=object))
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_llms_txt_has_every_page_with_a_sentence(site: ModuleType) -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    nav: Any = yaml.safe_load(text[text.index("nav:") :])["nav"]
    title, sentence, *sections = site.overview(nav).split("\n\n")
    assert (title, sentence) == ("# Hydrant", "> Hydrant trains PyTorch models from Hydra configs.")
    headings = [section.removeprefix("## ") for section in sections if section.startswith("## ")]
    assert headings == [name for section in nav for name in section]
    lines = [line for section in sections if section.startswith("- ") for line in section.splitlines()]
    found = [re.fullmatch(r"- \[(.+?)\]\((\S+\.html)\): (\S.*)", line) for line in lines]
    assert [line for line, match in zip(lines, found, strict=True) if match is None] == []
    links = [match[2] for match in found if match]
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    pages |= {"repository/CONTRIBUTING.md", "repository/CHANGELOG.md"}
    assert len(links) == len(pages)
    assert set(links) == {re.sub(r"README\.md$|\.md$", lambda end: {".md": ""}.get(end[0], "index"), page) + ".html"
                          for page in pages}  # fmt: skip


def test_the_first_sentence_is_text_without_links(site: ModuleType) -> None:
    assert site.title_and_sentence("guides/study.md") == (
        "Studies",
        '"Is muon better than adamw, each with its best hyperparameters?" is one command.',
    )
    assert site.title_and_sentence("repository/CONTRIBUTING.md")[0] == "Contributing"
    assert site.link_of("reference/api/README.md") == "reference/api/index.html"
    assert "](" not in site.title_and_sentence("guides/compare.md")[1]
