"""Checkpoints: whole or absent, in plain types, the right ones kept."""

from __future__ import annotations

import pickletools
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hydrant import checkpoint
from hydrant.checkpoint import Checkpoint, Checkpoints
from hydrant.errors import CheckpointError

CPU = torch.device("cpu")


def content(value: float = 1.0) -> Checkpoint:
    return Checkpoint({"w": torch.full((3,), value)}, {"state": {"num_updates": 1, "best": None}})


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path, keep_last=2)
    for num_updates in (10, 20, 30, 40):
        saved.save(num_updates, content(num_updates), is_best=num_updates == 10)
    assert names(tmp_path) == ["best", "last", "update_00000010", "update_00000030", "update_00000040"]
    assert (tmp_path / "best").resolve().name == "update_00000010"
    assert (tmp_path / "last").resolve().name == "update_00000040"
    assert float(checkpoint.load(tmp_path / "last", CPU).model["w"][0]) == 40


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Checkpoints(tmp_path, keep_last=2)
    saved.save(10, content(), is_best=False)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", _full_disk)
        with pytest.raises(CheckpointError, match=r"update_00000020 cannot be written: .*No space"):
            saved.save(20, content(), is_best=False)
    assert names(tmp_path) == ["last", "update_00000010"]
    newest = saved.newest()
    assert newest is not None
    assert newest.name == "update_00000010"
    saved.save(20, content(), is_best=False)
    assert names(tmp_path) == ["last", "update_00000010", "update_00000020"]


def _full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_kill_while_old_ones_are_removed_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Checkpoints(tmp_path, keep_last=1)
    saved.save(10, content(), is_best=False)

    def killed(path: Path) -> None:
        (path / "model.pt").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            saved.save(20, content(), is_best=False)
    assert saved.newest() == tmp_path / "update_00000020"
    saved.save(30, content(), is_best=False)
    assert names(tmp_path) == ["last", "update_00000030"]


def test_newest_goes_by_the_folders_not_by_the_link(tmp_path: Path) -> None:
    """A kill between the rename and the new link must not lose the checkpoint."""
    saved = Checkpoints(tmp_path, keep_last=9)
    for num_updates in (99_999_999, 100_000_000):
        saved.save(num_updates, content(), is_best=False)
    (tmp_path / "last").unlink()
    (tmp_path / "last").symlink_to("update_99999999")
    newest = saved.newest()
    assert newest is not None
    assert newest.name == "update_100000000"


def test_damage_and_absence_are_named(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path / "run" / "checkpoints", keep_last=1)
    path = saved.save(1, content(), is_best=False)
    (path / "model.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match=r"model\.pt cannot be read"):
        checkpoint.load(path, CPU)
    assert checkpoint.find(tmp_path / "run") == path
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint.find(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.find(tmp_path / "nowhere")


def test_a_real_one_holds_plain_types_only(train: Callable[..., Path]) -> None:
    """No class of OmegaConf, functools or ours is named in the files: anyone's torch.load reads them."""
    folder = train("tracker=local", "duration=2", "optimizer=timm", "optimizer.name=lookahead_adamw")
    for part in ("model", "training"):
        file = folder / "checkpoints" / "last" / f"{part}.pt"
        torch.load(file, weights_only=True)
        with zipfile.ZipFile(file) as archive:
            pickled = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
        modules = {str(arg).split()[0] for op, arg, _ in pickletools.genops(pickled) if op.name == "GLOBAL"}
        assert modules <= {"torch", "torch._utils", "collections"}
    keys = torch.load(folder / "checkpoints" / "last" / "model.pt", weights_only=True).keys()
    assert {key.split(".")[0] for key in keys} == {"hidden", "classifier"}
