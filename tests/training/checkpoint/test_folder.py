"""Which checkpoints are kept, how they are published, and what a kill leaves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoints import names, save
from run_folders import saved_updates
from safetensors.torch import load_file

from hydrant.clock import Interval
from hydrant.errors import ConfigError
from hydrant.training.checkpoint.folder import CheckpointFolder, Retention, find_checkpoint, newest_undamaged

pytestmark = pytest.mark.usefixtures("process_group")


def test_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30, 40, best=(10,))
    assert names(tmp_path) == ["best", "last", "update_00000010", "update_00000030", "update_00000040"]
    assert (tmp_path / "best").resolve().name == "update_00000010"
    assert (tmp_path / "last").resolve().name == "update_00000040"
    assert load_file(tmp_path / "last" / "model.safetensors")["w"].tolist() == [40, 40, 40]


def test_keeps_several_of_the_best_and_those_at_multiples(tmp_path: Path) -> None:
    keep = Retention(1, best=2, every=Interval(40))
    save(tmp_path, *range(10, 110, 10), best=(10, 20, 30, 70), keep=keep)
    assert saved_updates(tmp_path) == [30, 40, 70, 80, 100]
    # As in another process: the folder itself records which were the best.
    save(tmp_path, 110, 120, best=(110,), keep=keep)
    assert saved_updates(tmp_path) == [40, 70, 80, 110, 120]


def test_a_kill_while_old_checkpoints_are_removed_leaves_no_incomplete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 10, keep=Retention(1))

    def remove_half(path: Path, **_: object) -> None:
        if path.exists():
            (path / "model.safetensors").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", remove_half)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 20, keep=Retention(1))
    assert newest_undamaged(tmp_path) == tmp_path / "update_00000020"
    save(tmp_path, 30, keep=Retention(1))
    assert names(tmp_path) == ["last", "update_00000030"]


def test_a_start_completes_the_folder_that_a_kill_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after the checkpoint is renamed, before the links are moved and the old one is removed."""
    save(tmp_path, 10, best=(10,), keep=Retention(1))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "_link", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 20, best=(20,), keep=Retention(1))
    assert (tmp_path / "last").resolve().name == "update_00000010"
    CheckpointFolder(tmp_path, Retention(1)).roll_back_to(20, 20, foreign=None)
    assert names(tmp_path) == ["best", "last", "update_00000020"]
    assert (tmp_path / "last").resolve() == (tmp_path / "best").resolve() == tmp_path / "update_00000020"


def test_files_are_flushed_before_and_the_folder_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, rename, events = os.fsync, Path.rename, list[Any]()

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        events.append(os.fstat(descriptor).st_ino)

    def record_rename(path: Path, target: Path) -> Path:
        if path.name.startswith(".update_") and target.name.startswith("update_"):
            events.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "rename", record_rename)
    save(tmp_path / "run", 10)
    saved, events = events, []
    copied = CheckpointFolder(tmp_path / "copied", Retention(2))
    copied.copy_from(tmp_path / "run" / "update_00000010", None)
    for folder, order in (("run", saved), ("copied", events)):
        target = tmp_path / folder / "update_00000010"
        before, after = order[: order.index("renamed")], order[order.index("renamed") :]
        assert {path.stat().st_ino for path in (*target.iterdir(), target)} <= {*before}
        assert target.parent.stat().st_ino in after


def test_a_kill_during_a_copy_from_another_run_leaves_the_checkpoint_to_continue_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "source", 10, 20, best=(10,))
    copytree, copied = shutil.copytree, list[Path]()

    def copy_once(source: Path, *arguments: Any, **options: Any) -> None:
        if copied:
            raise KeyboardInterrupt
        copied.append(source)
        copytree(source, *arguments, **options)

    monkeypatch.setattr(shutil, "copytree", copy_once)
    with pytest.raises(KeyboardInterrupt):
        CheckpointFolder(tmp_path / "run", Retention(2)).copy_from(
            tmp_path / "source" / "update_00000020", 10
        )
    assert newest_undamaged(tmp_path / "run") == tmp_path / "run" / "update_00000020"


def test_the_newest_checkpoint_is_found_without_the_link(tmp_path: Path) -> None:
    """A kill may come between the rename of the folder and the new link."""
    save(tmp_path, 99_999_999, 100_000_000, keep=Retention(9))
    (tmp_path / "last").unlink()
    (tmp_path / "last").symlink_to("update_99999999")
    newest = newest_undamaged(tmp_path)
    assert newest is not None
    assert newest.name == "update_100000000"


def test_a_missing_checkpoint_names_the_config_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resume: .* holds no checkpoint"):
        find_checkpoint(tmp_path, "resume")
    with pytest.raises(ConfigError, match=r"resume: .* does not exist"):
        find_checkpoint(tmp_path / "nowhere", "resume")
