"""The corpus that is always there."""

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from training_runs import Train

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.extensions.language.token_files import (
    FOLDER,
    corpus,
    docstrings,
    fingerprint,
    splits_of,
    token_files,
    write_corpus,
)

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


SETTINGS = {"root": str(FOLDER), "dtype": "uint16", "train": "train_*.bin", "val": "val_*.bin",
            "test": None, "extra_val": {}}  # fmt: skip


@pytest.fixture
def library(
    tmp_path_factory: pytest.TempPathFactory, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A standard library of 23 modules, and folders that are none of it."""
    folder = tmp_path_factory.mktemp("library")
    for name in ("json", "test", "site-packages"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f'"""Package {name}."""')
    for n in range(22):
        (folder / f"module_{n}.py").write_text(MODULE.format(n=n))
    (folder / "broken.py").write_text("def f(:")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    corpus.cache_clear()
    yield folder
    corpus.cache_clear()


def write() -> None:
    write_corpus(splits_of(SETTINGS)["train"])


def texts(split: str) -> list[str]:
    [file] = token_files(str(FOLDER), f"{split}_*.bin", "uint16", f"data.{split}")
    parts = np.split(file.mapped(), np.flatnonzero(file.mapped() == 256) + 1)
    assert not len(parts.pop())  # a separator ends every document
    return [bytes(part[:-1].astype(np.uint8)).decode() for part in parts]


def test_the_strings_of_modules_classes_and_functions_are_documents(library: Path) -> None:
    write()
    train, val = texts("train"), texts("val")
    assert train[:5] == [
        "Package json.",
        "Module 0.",
        "A class of 0,\nindented.",
        "A function: é.",
        "Asynchronous.",
    ]
    assert len(train + val) == len(set(train + val)) == 1 + 2 * 22 + 2  # those that occur again are left out
    assert [text for text in val if text.startswith("Module")] == ["Module 15.", "Module 5."]
    assert sorted(path.name for path in FOLDER.parent.iterdir()) == [
        "docstrings"
    ]  # nothing temporary is left


@pytest.mark.slow
def test_a_corpus_is_made_once_also_by_two_processes(workdir: Path) -> None:
    (workdir / "library").mkdir()
    for n in range(300):
        (workdir / "library" / f"m{n}.py").write_text(MODULE.format(n=n))
    code = "import sysconfig; sysconfig.get_path = lambda name: 'library'; "
    code += "from hydrant.extensions.language.token_files import splits_of, write_corpus; "
    code += f"files = splits_of({SETTINGS})['train']; input(); write_corpus(files); print('done')"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [process.communicate("\n")[0] for process in processes] == ["done\n"] * 2
    assert [path.name for path in FOLDER.parent.iterdir()] == ["docstrings"]
    made = (FOLDER / "train_000000.bin").stat().st_mtime_ns
    write()
    assert (FOLDER / "train_000000.bin").stat().st_mtime_ns == made


def test_an_interrupted_corpus_is_no_corpus(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.extensions.language.token_files.write_tokens", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write()
    assert not list(FOLDER.parent.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(library: Path) -> None:
    FOLDER.parent.touch()  # a file
    with pytest.raises(ConfigError, match=r"data\.root: data/docstrings cannot be written"):
        write()


def test_a_python_without_sources_needs_another_folder(library: Path) -> None:
    for path in library.rglob("*.py"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"data\.root: .* has no sources of Python's library"):
        splits_of(SETTINGS)


def test_a_pattern_that_names_no_file_of_the_corpus_is_an_error(library: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.train: data/docstrings/train\.bin names no file"):
        splits_of(SETTINGS | {"train": ["train_*.bin", "train.bin"]})


def test_looking_at_a_config_writes_no_file_and_training_writes_the_corpus(
    library: Path, workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data=tokens", "model=gpt", "task=language_modeling", "data.sequence_length=8", "model.width=16",
             "model.num_layers=1", "model.head_dim=8", "global_batch_size=4", "duration=1",
             "tracker=local"]  # fmt: skip
    for command in (["preview"], ["train", "--cfg", "job", "--resolve"]):
        assert cli.main([*command, *words]) == 0, capsys.readouterr().err
        assert not list(workdir.iterdir())
    before = check(compose(words))["data"]
    train(*words)
    assert {path.name for path in FOLDER.iterdir()} == {"tokens.json", "train_000000.bin", "val_000000.bin"}
    assert check(compose(words))["data"] == before


def test_the_config_has_the_vocabulary_and_the_identity_of_the_corpus(library: Path, workdir: Path) -> None:
    write()
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


def test_broken_modules_and_warnings_are_passed_over() -> None:
    assert list(docstrings(b"def f(:")) == list(docstrings(b"\0")) == []
    assert list(docstrings(rb'"""\d"""')) == [r"\d"]


@pytest.mark.slow
def test_this_python_has_more_than_a_million_tokens(workdir: Path) -> None:
    write()
    train, val = (sum(map(len, texts(split))) for split in ("train", "val"))
    assert train > 10**6
    assert 0.05 < val / (train + val) < 0.2
