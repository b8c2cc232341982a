"""A run folder that is removed or replaced while the run trains."""

import time
from pathlib import Path
from typing import Any

import pytest
from marks import slow
from training_runs import DIGITS, Train

from hydrant.training import loop

WORDS = (*DIGITS, "duration=12", "log_every=null", "eval_every=null", "save_every=null")


def is_saved(checkpoints: Path) -> bool:
    """Return whether a checkpoint is written, and none is being written."""
    return (checkpoints / "last").exists() and not list(checkpoints.glob(".*"))


def change_folder(
    patch: pytest.MonkeyPatch, folder: Path, num_updates: int, replacement: Path | None
) -> None:
    """Remove the run folder in the middle of an update, and put another one in its place."""
    make_update = loop.make_update

    def update(trainer: loop.Trainer, *, measure: bool) -> Any:
        if trainer.state.num_updates + 1 == num_updates:
            while trainer.plan.intervals.save_every.is_on and not is_saved(folder / "checkpoints"):
                time.sleep(0.01)
            folder.rename(folder.with_name("removed"))
            if replacement is not None:
                replacement.rename(folder)
        return make_update(trainer, measure=measure)

    patch.setattr(loop, "make_update", update)


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
@pytest.mark.parametrize(
    "words",
    [
        *slow([]),
        ["log_every=1"],
        ["eval_every=2", "save_every=2", "save_async=false"],
        *slow(["save_every=4", "save_async=true"]),
        ["save_every=4", "keep_last=1", "histogram_every=2"],
    ],
)
def test_a_run_whose_folder_is_removed_fails_and_writes_nothing_there(
    words: list[str],
    is_replaced: bool,
    train: Train,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, other = workdir / "outputs" / "run", workdir / "other"
    other.mkdir()
    (other / "summary.json").write_text("{}")
    change_folder(monkeypatch, folder, 7, other if is_replaced else None)
    train(*WORDS, *words, status=1)
    printed = capfd.readouterr()
    assert "outputs/run was removed or replaced while the run trained" in printed.err.splitlines()[-1]
    assert "Traceback" not in printed.out + printed.err
    left = {file.name: file.read_text() for file in folder.iterdir()} if folder.exists() else {}
    assert left == ({"summary.json": "{}"} if is_replaced else {})
