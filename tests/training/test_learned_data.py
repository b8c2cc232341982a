"""Weights that learned other classes or columns than those of the data are named: their shapes fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_runs import Train

from hydrant.training.checkpoint.folder import find_damage
from hydrant.training.data_identity import DataIdentity

CSV = ("data=csv", "data.target=y", "tracker=local", "global_batch_size=6", "model.hidden=[4]", "duration=1",
       "eval_batch_size=6")  # fmt: skip


def write(path: Path, columns: str, classes: str) -> str:
    a, b, c = classes.split()
    rows = "".join(f"{n},{n * n % 7},{(a, b, c)[n % 3]}\n" for n in range(18))
    path.write_text(f"{columns},y\n{rows}")
    return f"data.train={path}"


def test_other_classes_and_columns_of_initial_weights_and_of_a_teacher_are_named(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*CSV, write(workdir / "own.csv", "a,b", "ant cat zebra"), name="own")
    words = {
        write(workdir / "same.csv", "a,b", "ant cat zebra"): "",
        write(
            workdir / "classes.csv", "a,b", "ant cow zebra"
        ): "have learned other classes: class 1 was 'cat'",
        write(
            workdir / "columns.csv", "b,a", "ant cat zebra"
        ): "were prepared otherwise: data.numbers was 'a'",
    }
    for number, (file, expected) in enumerate(words.items()):
        taught = ["task=distillation", f"task.teacher.path={folder}", "task.teacher.model.hidden=[4]"]
        capsys.readouterr()
        train(*CSV, file, *taught, f"init_from={folder}", name=f"other_{number}")
        lines = capsys.readouterr().out.splitlines()
        found = [line for line in lines if "the weights have learned" in line]
        keys = ["task.teacher.path", "init_from"] if expected else []
        assert [line.partition(":")[0] for line in found] == keys
        assert all(expected in line for line in found)


def test_the_bytes_of_a_teacher_are_checked_once_to_load_and_once_to_warn(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path
) -> None:
    file = write(workdir / "own.csv", "a,b", "ant cat zebra")
    source, checked = train(*CSV, file, name="source"), list[Path]()

    def count(folder: Path) -> str:
        checked.append(folder)
        return find_damage(folder)

    monkeypatch.setattr("hydrant.training.checkpoint.folder.find_damage", count)
    words = ("task=distillation", "task.teacher.model.hidden=[4]", f"task.teacher.path={source}")
    train(*CSV, file, *words, name="student")
    assert len([folder for folder in checked if source in folder.parents]) == 2


IDENTITY = DataIdentity(
    ["cat", "dog"], {"mean": {"x": 0.1}}, {"train": 40, "val": 10}, {"train": "a1", "val": "b2"},
    {"val": 10, "data.val": "v.csv", "folds": None},
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"statistics": {"mean": {"x": 0.1 + 1e-15}}}, {}),  # rounding
        ({"statistics": {}, "class_names": None, "data_files": {}}, {}),  # unknown
        ({"class_names": ["cat", "cow"]}, {"class_names": "class 1 was 'dog' and is now 'cow'"}),
        ({"statistics": {"mean": {"x": 0.2}}}, {"statistics": "data.mean.x was 0.1 and is now 0.2"}),
        ({"samples": {"train": 30, "val": 10}}, {"samples": "the number of samples.train was 40 and is now 30"}),
        ({"data_files": {"train": "a9", "val": "b2", "test": "c"}}, {"data_files": "data.train"}),
        ({"data_files": {"train": "a1", "val": "b9"}}, {"data_files": "data.val", "validated_by": ""}),
        ({"validated_by": {**IDENTITY.validated_by, "data.val": None}, "data_files": {"train": "a9"}},
         {"data_files": "data.train", "validated_by": ""}),
    ],
)  # fmt: skip
def test_the_identity_of_data_names_what_differs(
    changes: dict[str, Any], differences: dict[str, str]
) -> None:
    assert IDENTITY.differences(replace(IDENTITY, **changes)) == differences
    assert not IDENTITY.differences(IDENTITY)
