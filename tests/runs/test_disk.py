"""A disk that is full or becomes read-only during a run. Real limits and mounts."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from full_disk import file_size_limit
from repository import ROOT
from run_folders import assert_same_state, rows, saved_updates, summary, training, weights
from training_runs import Train, run_command

from hydrant.errors import ConfigError
from hydrant.files.on_disk import replace_file
from hydrant.runs.folder import RunFolder
from hydrant.runs.record import History, JsonLines
from hydrant.training import loop

WORDS = ("tracker=local", "model.hidden=[16]", "duration=12", "log_every=1", "eval_every=12", "save_every=4",
         "save_async=false")  # fmt: skip


def fill_disk(patch: pytest.MonkeyPatch, disk: ExitStack, folder: Path, updates: range) -> None:
    """Limit the size of files during these updates, so that metrics.jsonl ends in the middle of the first row."""
    make_update = loop.make_update

    def limited(trainer: loop.Trainer, *, measure: bool) -> Any:
        if trainer.state.num_updates + 1 == updates.start:
            disk.enter_context(file_size_limit((folder / "metrics.jsonl").stat().st_size + 40))
        if trainer.state.num_updates + 1 == updates.stop:
            disk.close()
        return make_update(trainer, measure=measure)

    patch.setattr(loop, "make_update", limited)


def test_a_full_disk_logs_a_warning_and_loses_no_row(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = train(*WORDS, name="whole")
    capfd.readouterr()
    folder = workdir / "outputs" / "run"
    with monkeypatch.context() as patch, ExitStack() as disk:
        fill_disk(patch, disk, folder, range(7, 10))  # the checkpoint of update 8 cannot be written either
        train(*WORDS)
    output = capfd.readouterr().out
    assert output.count("metrics.jsonl cannot be written: File too large; training continues") == 1
    assert output.count("cannot be written") == 2
    assert (
        "update_00000008 cannot be written: File too large; update_00000004 is the newest checkpoint"
        in output
    )
    assert saved_updates(folder / "checkpoints") == [4, 12]
    assert summary(folder)["status"] == "finished"
    assert rows(folder) == rows(whole)
    assert_same_state(weights(folder), weights(whole))


@pytest.mark.slow
def test_a_disk_that_stays_full_fails_the_run_at_its_end(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = workdir / "outputs" / "run"
    with monkeypatch.context() as patch, ExitStack() as disk:
        fill_disk(patch, disk, folder, range(7, 99))
        train(*WORDS, status=1)
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"error: OSError: \[Errno 27\] File too large: '.*/outputs/run/metrics\.jsonl'", last_line
    )
    assert (summary(folder)["status"], summary(folder)["error"]["type"]) == ("failed", "OSError")
    assert summary(folder)["num_updates"] == 12
    assert saved_updates(folder / "checkpoints") == [4]
    train(*WORDS)  # the same command, after the limit is lifted
    whole = train(*WORDS, name="whole")
    assert rows(folder) == rows(whole)
    assert_same_state(training(folder), training(whole))


def append(path: Path, row: dict[str, Any]) -> None:
    with closing(JsonLines(path, History(RunFolder(path.parent)))) as lines:
        lines.append(row)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: replace_file(path, "x" * 100),
        lambda path: append(path, {"num_updates": 1, "a": "x" * 100}),
    ],
)
def test_an_error_of_a_full_disk_names_the_file(write: Callable[[Path], None], tmp_path: Path) -> None:
    """Python's own error of a write or a flush has no name."""
    named = f"{tmp_path}/.*File too large|File too large.*{tmp_path}"
    with file_size_limit(50), pytest.raises((OSError, ConfigError), match=named):
        write(tmp_path / "file")


@pytest.mark.slow
def test_a_sweep_on_a_full_disk_names_the_file(workdir: Path) -> None:
    """In a process of its own: a fork server that starts with the limit would keep it for later tests."""
    words = [sys.executable, str(ROOT / "train.py"), "--multirun", *WORDS, "name=study", "seed=0,1"]
    with file_size_limit(400):  # which the process inherits
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # see file_size_limit
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    file = "multirun/study/multirun.yaml"
    assert done.stderr.splitlines()[-1].startswith(
        f"error: hydra.sweep.dir: {file} cannot be written (File too large); give a"
    )


READ_ONLY = """
import os, subprocess, sys
from hydrant import cli
from hydrant.training import loop

make_update = loop.make_update

def update(trainer, *, measure):
    if trainer.state.num_updates + 1 == 7:
        subprocess.run(["mount", "--bind", "outputs", "outputs"], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", "outputs"], check=True)
    return make_update(trainer, measure=measure)

loop.make_update = update
sys.exit(cli.main(["train", *sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs mount namespaces")
def test_a_disk_that_becomes_read_only_leaves_the_last_checkpoint(workdir: Path) -> None:
    namespace = ["unshare", "--mount", "--map-root-user"]
    words = ("name=run", *WORDS)
    done = subprocess.run([*namespace, sys.executable, "-c", READ_ONLY, *words], cwd=workdir, capture_output=True,
                          text=True, check=False, timeout=200)  # fmt: skip
    folder = workdir / "outputs" / "run"
    assert done.returncode == 1, done.stderr
    assert "Read-only file system" in done.stderr.splitlines()[-1]
    assert "update 12 of 12" in done.stdout
    assert saved_updates(folder / "checkpoints") == [4]
    again = run_command(*words, cwd=workdir)
    assert again.returncode == 0, again.stderr
    assert len(rows(folder)) == 13
