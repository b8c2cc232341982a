"""The corpus that is always there."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from token_folders import write_bin
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.extensions.language.token_files import FOLDER, corpus, docstrings, fingerprint, splits_of

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


def texts(split: str) -> list[str]:
    [file] = splits_of(SETTINGS)[split]
    parts = np.split(file.mapped(), np.flatnonzero(file.mapped() == 256) + 1)
    assert not len(parts.pop())  # a separator ends every document
    return [bytes(part[:-1].astype(np.uint8)).decode() for part in parts]


def test_the_strings_of_modules_classes_and_functions_are_documents(library: Path) -> None:
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


def test_a_pattern_that_names_no_file_of_the_corpus_is_an_error(library: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.train: data/docstrings/train\.bin names no file"):
        splits_of(SETTINGS | {"train": ["train_*.bin", "train.bin"]})


def test_a_run_trains_on_the_corpus_and_writes_no_file_of_it(
    library: Path, workdir: Path, train: Train
) -> None:
    train("data=tokens", "model=gpt", "task=language_modeling", "data.sequence_length=8", "model.width=16",
          "model.num_layers=1", "model.head_dim=8", "global_batch_size=4", "duration=1", "tracker=local")  # fmt: skip
    assert [path.name for path in workdir.iterdir()] == ["outputs"]
    data = check(compose(["data=tokens"]))["data"]
    assert (data["root"], data["vocab_size"], data["separator"]) == ("data/docstrings", 257, 256)
    assert data["fingerprint"] == fingerprint(splits_of(SETTINGS))


def test_a_folder_in_place_of_the_corpus_has_the_vocabulary_of_its_own(workdir: Path) -> None:
    for split in ("train", "val"):
        write_bin(FOLDER / f"{split}_0.bin", np.arange(600) % 300)
    with pytest.raises(ConfigError, match=r"^data\.vocab_size: data/docstrings has no tokens\.json"):
        check(compose(["data=tokens"]))
    data = check(compose(["data=tokens", "data.vocab_size=300"]))["data"]
    assert (data["separator"], data["fingerprint"]) == (None, fingerprint(splits_of(SETTINGS)))


def test_broken_modules_and_warnings_are_passed_over() -> None:
    assert list(docstrings(b"def f(:")) == list(docstrings(b"\0")) == []
    assert list(docstrings(rb'"""\d"""')) == [r"\d"]


@pytest.mark.slow
def test_this_python_has_more_than_a_million_tokens(workdir: Path) -> None:
    train, val = (sum(map(len, texts(split))) for split in ("train", "val"))
    assert train > 10**6
    assert 0.05 < val / (train + val) < 0.2
