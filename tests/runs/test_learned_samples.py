"""Weights of a run that trained on samples which evaluate another one are named: its results would be too good."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_runs import Train

from hydrant.runs.load import warn_of_learned_samples
from hydrant.training.checkpoint.content import SavedCheckpoint
from hydrant.training.checkpoint.folder import find_damage

SIZES = ("tracker=local", "model.hidden=[4]", "global_batch_size=8", "eval_batch_size=8", "duration=1",
         "limit_train_samples=32", "limit_val_samples=8")  # fmt: skip
DIGITS = (*SIZES, "data=digits")
WARNING = "samples that evaluate this one may have trained it"


@pytest.mark.parametrize("way", ["init_from", "task.teacher.path"])
def test_initial_weights_and_a_teacher_of_other_splits_are_named(
    way: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(*DIGITS, "folds=3", "fold=1", name="first")
    whole = train(*DIGITS, name="whole")
    distilled = ["task=distillation", "task.teacher.model.hidden=[4]"] * (way != "init_from")

    def warnings_of(name: str, source: Path, *words: str) -> list[str]:
        capsys.readouterr()
        train(*DIGITS, *distilled, f"{way}={source}", *words, name=name)
        return [line for line in capsys.readouterr().out.splitlines() if WARNING in line]

    assert warnings_of("same", first, "folds=3", "fold=1") == []
    assert warnings_of("unused", whole, "fold_seed=2") == []
    assert warnings_of("best", first / "checkpoints" / "last", "folds=3", "fold=2") == [
        f"{way}: that run had other splits (fold), so {WARNING}"
    ]
    [split] = warnings_of("split", whole, "data.split_seed=1")
    assert "other splits (data.split_seed)" in split
    [cut] = warnings_of("cut", first)
    assert "other splits (folds, fold)" in cut


def test_the_file_that_trained_weights_is_known_by_its_content(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, shift in (("a", 0), ("b", 1), ("c", 2)):
        rows = "".join(f"{(n + shift) % 5},{n % 2}\n" for n in range(20))
        (workdir / f"{name}.csv").write_text(f"x,y\n{rows}")
    (workdir / "copy.csv").write_bytes((workdir / "a.csv").read_bytes())
    csv = (*SIZES, "data=csv", "data.target=y")
    source = train(*csv, "data.train=a.csv", "data.val=b.csv", name="source")
    for name, val, expected in (("other", "c.csv", 0), ("copied", "copy.csv", 1)):
        capsys.readouterr()
        train(*csv, "data.train=b.csv", f"data.val={val}", f"init_from={source}", name=name)
        printed = capsys.readouterr().out
        assert printed.count(f"other splits (data.val), so {WARNING}") == printed.count(WARNING) == expected


def test_other_data_have_other_splits_without_a_word(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    source = train(*DIGITS, name="source")
    capsys.readouterr()
    synthetic = ("data=synthetic", "data.num_samples=32", "data.num_classes=10", "data.input_shape=[1,8,8]")
    train(*SIZES, *synthetic, "folds=2", f"init_from={source}", name="other")
    assert WARNING not in capsys.readouterr().out


@pytest.mark.parametrize("other", ["lr: 1", "data: /data"])
def test_weights_beside_the_config_of_another_program_are_taken(
    other: str, train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = train(*DIGITS, name="source")
    (workdir / "weights").mkdir()
    (source / "checkpoints" / "last").resolve().rename(workdir / "weights" / "pretrained")
    (workdir / "config.yaml").write_text(other)
    train(*DIGITS, "init_from=weights/pretrained", name="other")
    assert WARNING not in capsys.readouterr().out


def test_the_bytes_of_a_teacher_are_checked_once_to_load_and_once_to_warn(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, checked = train(*DIGITS, name="source"), list[Path]()

    def count(folder: Path) -> str:
        checked.append(folder)
        return find_damage(folder)

    monkeypatch.setattr("hydrant.training.checkpoint.folder.find_damage", count)
    words = ("task=distillation", "task.teacher.model.hidden=[4]", f"task.teacher.path={source}")
    train(*DIGITS, *words, name="student")
    assert len([folder for folder in checked if source in folder.parents]) == 2


def test_weights_may_lie_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SavedCheckpoint, "plain_state", lambda *_, default: default)
    plan: Any = SimpleNamespace(config={"data": {}}, data_files={})
    warn_of_learned_samples(plan, "init_from", Path("/weights"))
