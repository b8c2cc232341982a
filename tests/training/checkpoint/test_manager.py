"""Saving checkpoints: in the background, on a full disk, after a failure."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import content, names, save
from full_disk import file_size_limit
from run_folders import saved_updates
from safetensors.torch import load_file

from hydrant.errors import CheckpointError
from hydrant.training.checkpoint import manager, storage
from hydrant.training.checkpoint.folder import Retention, newest_undamaged, read_manifest
from hydrant.training.checkpoint.manager import CheckpointManager
from hydrant.training.checkpoint.storage import Checkpoint

pytestmark = pytest.mark.usefixtures("process_group")


def test_a_full_disk_is_logged_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged_warnings: Callable[[], list[str]]
) -> None:
    save(tmp_path, 10)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "save_file", full_disk)
        message = r"_00000030 cannot be written: No space .*_00000010 is the"
        with pytest.raises(CheckpointError, match=message):
            save(tmp_path, 20, 30)
    assert len(logged_warnings()) == 1
    assert names(tmp_path) == ["last", "update_00000010"]
    assert newest_undamaged(tmp_path) == tmp_path / "update_00000010"
    with CheckpointManager(tmp_path, Retention(2)) as checkpoints:  # no error: a later one is written
        with monkeypatch.context() as patch:
            patch.setattr(storage, "save_file", full_disk)
            checkpoints.save(20, content(), is_best=False)
        checkpoints.save(30, content(), is_best=False)
    assert saved_updates(tmp_path) == [10, 30]


def test_safetensors_error_on_a_full_disk_is_recognized(tmp_path: Path) -> None:
    too_large = pytest.raises(CheckpointError, match="_00000010 cannot be written: File too large; there")
    with too_large, file_size_limit(1000), CheckpointManager(tmp_path, Retention(2)) as checkpoints:
        checkpoints.save(10, Checkpoint({"w": torch.zeros(10_000)}, content().training), is_best=False)
    assert names(tmp_path) == []


@pytest.mark.parametrize("in_background", [False, True])
def test_an_error_that_is_not_of_the_disk_is_raised(in_background: bool, tmp_path: Path) -> None:
    unsaveable = Checkpoint(content().model, {"state": object()})
    expected = pytest.raises(CheckpointError, match="state cannot be saved: object is not a plain type")
    with expected, CheckpointManager(tmp_path, Retention(2), in_background=in_background) as checkpoints:
        checkpoints.save(10, unsaveable, is_best=False)


def test_a_failure_in_the_background_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def wait_for_failure(checkpoints: CheckpointManager) -> None:
        while not checkpoints.poll():
            time.sleep(0.01)
        assert checkpoints.poll()  # stays true until the error is raised

    monkeypatch.setattr(storage, "save_file", fail)
    calls: list[Callable[[CheckpointManager], Any]] = [
        lambda c: c.save(20, content(), is_best=False), lambda c: c.wait(),
        lambda c: (wait_for_failure(c), c.save(20, content(), is_best=False)),
    ]  # fmt: skip
    for call in calls:
        with CheckpointManager(tmp_path, Retention(2), in_background=True) as checkpoints:
            checkpoints.save(10, content(), is_best=False)
            message = "_00000010 cannot be written: ZeroDivisionError: a bug"
            with pytest.raises(CheckpointError, match=message):
                call(checkpoints)
    expected = pytest.raises(CheckpointError, match="a bug")
    with expected, CheckpointManager(tmp_path, Retention(2), in_background=True) as checkpoints:
        checkpoints.save(10, content(), is_best=False)


def test_saving_in_the_background_writes_the_state_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files equal those of a save that waits, although training changes the state before a byte is written."""
    weight, group = torch.arange(6.0).reshape(2, 3), {"lr": 0.1, "betas": [0.9]}
    state = Checkpoint({"w": weight, "tied": weight, "t": weight.t()}, {"group": group, "sums": weight[0]})
    save_file, may_write, written = storage.save_file, threading.Event(), list[int]()

    def save_later(*arguments: Any) -> None:
        assert may_write.wait(60)
        save_file(*arguments)

    with CheckpointManager(tmp_path / "foreground", Retention(2)) as checkpoints:
        checkpoints.save(10, state, is_best=False)
    monkeypatch.setattr(storage, "save_file", save_later)
    with CheckpointManager(tmp_path / "background", Retention(2), in_background=True) as checkpoints:
        checkpoints.save(10, state, is_best=False, on_written=lambda: written.append(10))
        weight.zero_()
        group["lr"] = 0.2
        group["betas"].clear()
        assert newest_undamaged(tmp_path / "background") is None
        assert (checkpoints.poll(), written) == (False, [])
        may_write.set()
    assert written == [10]
    one, other = (
        {p.name: p.read_bytes() for p in (tmp_path / name / "update_00000010").iterdir()}
        for name in ("foreground", "background")
    )
    assert one == other
    assert load_file(tmp_path / "background/last/model.safetensors")["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


class Rows(manager.Rows):
    """Rows that cannot be flushed to disk while `error` is set."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints, self.error, self.events = checkpoints, "", list[Any]()

    def num_rows(self) -> dict[str, int]:
        return {"metrics.jsonl": 3}

    def sync_rows(self) -> None:
        self.events.append((threading.current_thread().name, saved_updates(self.checkpoints)))
        if self.error:
            raise OSError(28, self.error)


def test_a_checkpoint_is_published_after_its_rows_are_on_disk(
    tmp_path: Path, logged_warnings: Callable[[], list[str]]
) -> None:
    rows = Rows(tmp_path)
    with CheckpointManager(tmp_path, Retention(2), rows) as checkpoints:
        checkpoints.save(10, content(), is_best=False)
        rows.error = "No space left on device"
        checkpoints.save(20, content(), is_best=False)
        assert saved_updates(tmp_path) == [10]
        rows.error = ""
        checkpoints.save(30, content(), is_best=False)
    assert rows.events == [("checkpoint_0", saved) for saved in ([], [10], [10])]
    assert saved_updates(tmp_path) == [10, 30]
    assert read_manifest(tmp_path / "last").rows == {"metrics.jsonl": 3}
    assert len(logged_warnings()) == 1


def test_the_timeout_is_that_of_the_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)  # one rank needs no group
    with CheckpointManager(tmp_path, Retention(2), timeout_seconds=7) as checkpoints:
        backend: Any = checkpoints._group._get_backend(torch.device("cpu"))
        assert backend.options._timeout.total_seconds() == 7


def test_the_thread_uses_the_gpu_of_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a CUDA that is not there: the calls are recorded."""
    calls: list[tuple[int, str]] = []
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    monkeypatch.setattr(
        "torch.cuda.set_device", lambda device: calls.append((device, threading.current_thread().name))
    )
    monkeypatch.setattr("hydrant.training.checkpoint.manager._copy_barrier", lambda: lambda: None)
    with CheckpointManager(tmp_path, Retention(2), in_background=True) as checkpoints:
        checkpoints.save(10, content(), is_best=False)
    assert calls == [(3, "checkpoint_0")]
