"""scripts/size: its figures, and when it fails."""

import subprocess
import tomllib
from pathlib import Path

import pytest
from repository import ROOT

SOURCE = '''"""A module."""

import os  # code
from os import (
    path,
)

LIMIT = 3
"""Text below a constant is code."""


class Made:
    """Two
    lines."""

    def _named_once(self) -> str:
        return path.join("a",

                         os.sep)

    def value(self) -> str:
        if LIMIT > 3:
            raise ValueError(LIMIT)
        return self._named_once() + _twice() + _twice()


def _twice() -> str:
    """Only a docstring and a line."""
    return "#"
'''
LIMITS = {"code_lines": 16, "files": 1, "import_lines": 4, "import_percent": 25, "raise_statements": 1,
          "functions_over_40_lines": 0, "helpers_up_to_5_lines_used_once": 1, "words_of_docs": 4,
          "words_of_changelog": 3, "words_of_contributing": 3, "words_of_readme": 3,
          "code_lines_of_tests": 1}  # fmt: skip


def size(folder: Path, *words: str, **limits: float) -> tuple[int, str, str]:
    """Return the status, stdout and stderr of scripts/size for a project with these limits."""
    texts = {
        "src/hydrant/room/made.py": SOURCE,
        "tests/test_made.py": "assert True\n",
        "docs/page.md": "three words\n",
        "docs/deep/page.md": "one two",
        **{f"{name}.md": "only three words" for name in ("CHANGELOG", "CONTRIBUTING", "README")},
        "scripts/size.toml": "".join(f"{name} = {limit}\n" for name, limit in (LIMITS | limits).items()),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run([ROOT / "scripts" / "size", *words, folder], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_what_is_at_its_limit_passes_and_what_is_above_is_named(tmp_path: Path) -> None:
    """Each figure is its limit exactly: one less fails."""
    status, printed, _ = size(tmp_path)
    assert status == 0
    assert printed.split()[:5] == ["room", "16", "lines", "1", "files"]
    assert size(tmp_path, "--check") == (0, "", "")
    for name, limit in LIMITS.items():
        status, printed, error = size(tmp_path, "--check", **{name: limit - 1})
        assert (status, printed) == (1, "")
        assert error.startswith(f"{name} is {limit}")
        assert error.count("\n") == 1


def test_the_limits_of_this_repository_name_every_figure() -> None:
    limits = tomllib.loads((ROOT / "scripts" / "size.toml").read_text())
    assert limits.keys() == LIMITS.keys()
