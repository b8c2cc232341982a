"""`hydrant docs`: pages and sections of the documentation."""

from __future__ import annotations

import pytest
from repository import ROOT

from hydrant import cli

PAGE = (ROOT / "docs" / "guides" / "compare.md").read_text()


@pytest.mark.parametrize("word", ["compare", "guides/compare", "docs/guides/compare.md"])
def test_a_page_is_printed_by_its_path_or_its_last_part(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["docs", word]) == 0
    assert capsys.readouterr().out == PAGE


def test_the_sections_of_a_page_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "compare#"]) == 0
    words = capsys.readouterr().out.split()
    assert {"compare#the-verdict", "compare#the-groups"} <= {*words}
    assert cli.main(["docs", *words[1:]]) == 0, "the first one is the page"
    text = capsys.readouterr().out
    assert text.replace("\n\n", "\n") == PAGE[PAGE.index("\n## ") + 1 :].replace("\n\n", "\n")


def test_a_comment_in_a_code_block_is_no_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\n# " in (ROOT / "docs" / "guides" / "data.md").read_text()
    assert cli.main(["docs", "guides/data#"]) == 0
    assert (
        len({*capsys.readouterr().out.split()})
        == (ROOT / "docs" / "guides" / "data.md").read_text().count("\n## ") + 1
    )


def test_an_unknown_section_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "compare#verdict"]) == 2
    assert "the-verdict" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("sweps", "did you mean sweeps?"),
        ("resume", "did you mean resuming"),
        ("csv", "Pages about it: guides/"),
        ("a", "`hydrant docs` lists all pages"),
        ("qqqq", "`hydrant docs` lists all pages"),
    ],
)
def test_a_word_that_names_no_page_leads_to_one(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["docs", word]) == 2
    assert said in capsys.readouterr().err
