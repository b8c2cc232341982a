"""Which checkpoints are kept, how they are published, and what a kill leaves."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoints import names, save
from killing import start_and_kill
from marks import slow
from run_folders import saved_updates
from safetensors.torch import load_file

from hydrant.clock import Interval
from hydrant.errors import ConfigError
from hydrant.training.checkpoint.folder import (
    CheckpointFolder,
    Retention,
    check_links,
    find_checkpoint,
    newest_undamaged,
)

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
    CheckpointFolder(tmp_path, Retention(1, best=4)).roll_back_to(120, 110, foreign=None)
    assert saved_updates(tmp_path) == [70, 110, 120], "fewer of the best than are kept"
    CheckpointFolder(tmp_path, Retention(1, best=0)).roll_back_to(120, 110, foreign=None)
    assert names(tmp_path) == ["last", "update_00000120"]


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


def test_a_start_completes_folder_that_a_kill_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        if path.name in (".update_00000010", ".copied"):
            events.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "rename", record_rename)
    save(tmp_path / "run", 10)
    saved, events = events, []
    copied = CheckpointFolder(tmp_path / "copied", Retention(2))
    copied.copy_from(tmp_path / "run" / "update_00000010", 10, None)
    run, copy = tmp_path / "run" / "update_00000010", tmp_path / "copied"
    for renamed, order in ((run, saved), (copy, events)):
        before, after = order[: order.index("renamed")], order[order.index("renamed") :]
        assert {path.stat().st_ino for path in (*renamed.rglob("*"), renamed)} <= {*before}
        assert renamed.parent.stat().st_ino in after


def copy(checkpoint: Path, to: Path) -> int:
    CheckpointFolder(to, Retention(2)).copy_from(checkpoint, 20, 10)
    return 0


@pytest.mark.parametrize("stride", [4, *slow(1)])
def test_a_kill_during_a_copy_from_another_run_leaves_both_checkpoints_or_none(
    stride: int, tmp_path: Path
) -> None:
    save(tmp_path / "source", 10, 20, best=(10,))
    for num_writes in itertools.count(step=stride):
        to = tmp_path / f"run_{num_writes}" / "checkpoints"
        (to / ".update_00000005").mkdir(parents=True)  # another kill has left it
        arguments = (tmp_path / "source" / "update_00000020", to)
        start = start_and_kill(copy, arguments, to.parent, num_writes, tmp_path / "process")
        assert saved_updates(to) in ([], [10, 20])
        assert copy(*arguments) == 0
        assert names(to) == ["update_00000010", "update_00000020"]
        if not start.was_killed:
            break
    assert num_writes > 20


def test_a_copied_checkpoint_is_named_by_its_update(tmp_path: Path) -> None:
    save(tmp_path / "source", 10)
    renamed = (tmp_path / "source" / "update_00000010").rename(tmp_path / "source" / "mine")
    folder = CheckpointFolder(tmp_path / "run", Retention(2))
    folder.roll_back_to(10, None, foreign=renamed)
    assert names(tmp_path / "run") == ["last", "update_00000010"]
    assert (tmp_path / "run" / "last").resolve() == newest_undamaged(tmp_path / "run")


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
    for missing in (tmp_path / "nowhere", tmp_path / "nowhere" / "checkpoints" / "last"):
        with pytest.raises(ConfigError, match=r"resume: .* does not exist"):
            find_checkpoint(missing, "resume")


def test_a_file_of_a_run_or_the_name_of_one_proposes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("outputs", "run")
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").touch()
    with pytest.raises(ConfigError, match=r"^outputs/run/config.yaml is a file; did you mean outputs/run\?$"):
        find_checkpoint(folder / "config.yaml", "")
    with pytest.raises(ConfigError, match=r"^run does not exist; did you mean outputs/run\?$"):
        find_checkpoint("run", "")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_temporary_name_that_is_taken_fails_no_save(kind: str, tmp_path: Path) -> None:
    for name in (".update_00000005", ".update_00000020", ".last", ".best"):
        path = tmp_path / name
        if kind == "folder":
            (path / "content").mkdir(parents=True)
        elif kind == "file":
            path.write_text("content")
        else:
            path.symlink_to("nowhere")
    save(tmp_path, 10, 20, best=(20,))
    assert names(tmp_path) == ["best", "last", "update_00000010", "update_00000020"]


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_link_that_became_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Such as in a copy of a run folder from a disk without links. The folder may be the only copy of the weights."""
    save(tmp_path, 10, best=(10,))
    check_links(tmp_path)
    (tmp_path / name).unlink()
    shutil.copytree(tmp_path / "update_00000010", tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} must be a link to a checkpoint"):
        check_links(tmp_path)
