"""Weights that learned other classes or columns than those of the data are named: their shapes fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from lanes import plan_of
from training_runs import Train

from hydrant.training.checkpoint.content import SavedCheckpoint
from hydrant.training.checkpoint.folder import find_checkpoint
from hydrant.training.data_checks import warn_of_other_data

CSV = ("data=csv", "data.target=y", "tracker=local", "global_batch_size=6", "model.hidden=[4]", "duration=1",
       "eval_batch_size=6")  # fmt: skip


def write(path: Path, columns: str, classes: str) -> str:
    a, b, c = classes.split()
    rows = "".join(f"{n},{n * n % 7},{(a, b, c)[n % 3]}\n" for n in range(18))
    path.write_text(f"{columns},y\n{rows}")
    return f"data.train={path}"


def test_other_classes_and_columns_of_initial_weights_and_of_a_teacher_are_named(
    train: Train, workdir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = train(*CSV, write(workdir / "own.csv", "a,b", "ant cat zebra"), name="own")
    saved = SavedCheckpoint(find_checkpoint(folder, "init_from"))
    words = {
        write(workdir / "same.csv", "a,b", "ant cat zebra"): "",
        write(
            workdir / "classes.csv", "a,b", "ant cow zebra"
        ): "have learned other classes: class 1 was 'cat'",
        write(
            workdir / "columns.csv", "b,a", "ant cat zebra"
        ): "were prepared otherwise: data.numbers was 'a'",
    }
    for file, expected in words.items():
        taught = ["task=distillation", f"task.teacher.path={folder}", "task.teacher.model.hidden=[4]"]
        caplog.clear()
        plan = plan_of([*CSV, file, *taught])
        warn_of_other_data(saved, plan.data)
        found = [message for message in caplog.messages if "the weights have learned" in message]
        assert [message.partition(":")[0] for message in found] == ["task.teacher.path", "init_from"] * bool(
            expected
        )
        assert all(expected in message for message in found)
