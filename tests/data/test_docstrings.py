"""The corpus that is always there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import yaml

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.data.docstrings import docstring_corpus, docstrings
from hydrant.data.token_files import fingerprint, token_files
from hydrant.errors import ConfigError

MODULE = '''"""Module {n}."""
class A:
    """A class of {n},
       indented."""
    def f(self):
        """A function: é."""
        def g():
            """Left out."""
if True:
    try:
        import c
    except ImportError:
        async def h(): """Asynchronous."""
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of 23 modules, and folders that are none of it."""
    folder = tmp_path / "library"
    for name in ("json", "test", "site-packages"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f'"""Package {name}."""')
    for n in range(22):
        (folder / f"module_{n}.py").write_text(MODULE.format(n=n))
    (folder / "broken.py").write_text("def f(:")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder


def texts(folder: Path, split: str) -> list[str]:
    [file] = token_files(str(folder), f"{split}_*.bin", "uint16", f"data.{split}")
    parts = np.split(file.mapped(), np.flatnonzero(file.mapped() == 256) + 1)
    assert not len(parts.pop())  # a separator ends every document
    return [bytes(part[:-1].astype(np.uint8)).decode() for part in parts]


def test_the_strings_of_modules_classes_and_functions_are_documents(library: Path, tmp_path: Path) -> None:
    folder = Path(docstring_corpus(str(tmp_path / "data" / "docs")))
    train, val = texts(folder, "train"), texts(folder, "val")
    assert train[:5] == [
        "Package json.",
        "Module 0.",
        "A class of 0,\nindented.",
        "A function: é.",
        "Asynchronous.",
    ]
    assert len(train + val) == len(set(train + val)) == 1 + 2 * 22 + 2  # those that occur again are left out
    assert [text for text in val if text.startswith("Module")] == ["Module 15.", "Module 5."]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["docs"]  # nothing temporary is left


def test_a_corpus_is_made_once_also_by_two_processes(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    for n in range(300):
        (tmp_path / "library" / f"m{n}.py").write_text(MODULE.format(n=n))
    code = "import sysconfig, sys; sysconfig.get_path = lambda name: 'library'; "
    code += "from hydrant.data.docstrings import docstring_corpus; print(docstring_corpus('docs'))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in processes] == ["docs\n"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "library"]
    made = (tmp_path / "docs" / "train_000000.bin").stat()
    docstring_corpus(str(tmp_path / "docs"))
    assert (tmp_path / "docs" / "train_000000.bin").stat() == made


def test_an_interrupted_corpus_is_no_corpus(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.data.docstrings.docstrings", lambda source: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        docstring_corpus(str(tmp_path / "data" / "docs"))
    assert not list((tmp_path / "data").iterdir())


def test_a_python_without_sources_needs_another_folder(library: Path, tmp_path: Path) -> None:
    for path in library.rglob("*.py"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"data\.root: .* has no sources of Python's library"):
        docstring_corpus(str(tmp_path / "docs"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data\.root: .* cannot be written"):
        docstring_corpus(str(tmp_path / "file" / "docs"))


def test_the_config_has_the_vocabulary_and_the_identity_of_the_corpus(library: Path, workdir: Path) -> None:
    data = check(compose(["data=tokens"]))["data"]
    files = {
        name: token_files("data/docstrings", f"{name}_*.bin", "uint16", name) for name in ("train", "val")
    }
    assert (data["root"], data["vocab_size"], data["separator"]) == ("data/docstrings", 257, 256)
    assert data["fingerprint"] == fingerprint(files)
    (workdir / "data" / "docstrings" / "tokens.json").unlink()
    words = ["data=tokens", "data.root=data/docstrings"]
    with pytest.raises(ConfigError, match=r"^data\.vocab_size: data/docstrings has no tokens\.json"):
        check(compose(words))
    other = check(compose([*words, "data.vocab_size=300"]))["data"]
    assert (other["separator"], other["fingerprint"]) == (None, data["fingerprint"])
    default = Path(__file__).parents[2] / "conf" / "data" / "tokens.yaml"
    assert yaml.safe_load(default.read_text())["root"] == "${docstring_corpus:data/docstrings}"


def test_broken_modules_and_warnings_are_passed_over() -> None:
    assert list(docstrings(b"def f(:")) == list(docstrings(b"\0")) == []
    assert list(docstrings(rb'"""\d"""')) == [r"\d"]


@pytest.mark.slow
def test_this_python_has_more_than_a_million_tokens(tmp_path: Path) -> None:
    folder = Path(docstring_corpus(str(tmp_path / "docs")))
    train, val = (sum(map(len, texts(folder, split))) for split in ("train", "val"))
    assert train > 10**6
    assert 0.05 < val / (train + val) < 0.2
