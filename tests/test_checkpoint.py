"""Checkpoints: whole or absent, seen to be damaged, of no pickle, the right ones kept."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import assert_same_state
from safetensors.torch import load_file

from hydrant.checkpoint import (
    Checkpoint,
    Checkpoints,
    Retention,
    Weights,
    damage,
    find,
    newest_whole,
    plain_state,
    read_state,
    storage,
)
from hydrant.checkpoint.folder import Folder
from hydrant.checkpoint.state import Snapshot
from hydrant.clock import Cadence
from hydrant.distributed import World
from hydrant.errors import CheckpointError, ConfigError


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    with World.from_launcher().group():
        yield


def content(value: float = 1.0) -> Checkpoint:
    training = {"state": {"num_updates": 1, "best": None}, "sums": torch.full((2,), value)}
    return Checkpoint({"w": torch.full((3,), value)}, training)


def save(path: Path, *updates: int, best: tuple[int, ...] = (), keep: Retention | None = None) -> None:
    with Checkpoints(path, keep or Retention(2)) as checkpoints:
        for num_updates in updates:
            checkpoints.save(num_updates, content(num_updates), is_best=num_updates in best)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "hydrant"]


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def numbers(path: Path) -> list[int]:
    return [int(name[7:]) for name in names(path) if name.startswith("update_")]


def test_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30, 40, best=(10,))
    assert names(tmp_path) == ["best", "last", "update_00000010", "update_00000030", "update_00000040"]
    assert (tmp_path / "best").resolve().name == "update_00000010"
    assert (tmp_path / "last").resolve().name == "update_00000040"
    assert load_file(tmp_path / "last" / "model.safetensors")["w"].tolist() == [40, 40, 40]


def test_keeps_several_of_the_best_and_those_at_multiples(tmp_path: Path) -> None:
    keep = Retention(1, best=2, every=Cadence(40))
    save(tmp_path, *range(10, 110, 10), best=(10, 20, 30, 70), keep=keep)
    assert numbers(tmp_path) == [30, 40, 70, 80, 100]
    save(
        tmp_path, 110, 120, best=(110,), keep=keep
    )  # in another process: the folder itself says which were best
    assert numbers(tmp_path) == [40, 70, 80, 110, 120]


def test_a_disk_that_is_full_is_told_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 10)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "save_file", full_disk)
        with pytest.raises(
            CheckpointError, match=r"_00000030 cannot be written: No space .*_00000010 is the"
        ):
            save(tmp_path, 20, 30)
    assert len(told(caplog)) == 1
    assert names(tmp_path) == ["last", "update_00000010"]
    assert newest_whole(tmp_path) == tmp_path / "update_00000010"
    with Checkpoints(tmp_path, Retention(2)) as checkpoints:  # ends well, for a later one is there
        with monkeypatch.context() as patch:
            patch.setattr(storage, "save_file", full_disk)
            checkpoints.save(20, content(), is_best=False)
        checkpoints.save(30, content(), is_best=False)
    assert numbers(tmp_path) == [10, 30]


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """What safetensors raises there is known for it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            pytest.raises(CheckpointError, match="_00000010 cannot be written: File too large; there")
        )
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # bytes of a file
        checkpoints = stack.enter_context(Checkpoints(tmp_path, Retention(2)))
        checkpoints.save(10, Checkpoint({"w": torch.zeros(10_000)}, content().training), is_best=False)
    assert names(tmp_path) == []


@pytest.mark.parametrize("in_background", [False, True])
def test_what_is_no_fault_of_the_disk_ends_the_run(in_background: bool, tmp_path: Path) -> None:
    wrong = Checkpoint(content().model, {"state": object()})
    expected = pytest.raises(CheckpointError, match="state cannot be saved: it is a object, no plain type")
    with expected, Checkpoints(tmp_path, Retention(2), in_background=in_background) as checkpoints:
        checkpoints.save(10, wrong, is_best=False)


def test_a_failure_in_the_background_is_raised_at_the_next_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def ended(checkpoints: Checkpoints) -> None:
        while not checkpoints.has_failed():
            time.sleep(0.01)
        assert checkpoints.has_failed()  # until it is raised

    monkeypatch.setattr(storage, "save_file", failing)
    chances: list[Callable[[Checkpoints], Any]] = [
        lambda c: c.save(20, content(), is_best=False), lambda c: c.wait(),
        lambda c: (ended(c), c.save(20, content(), is_best=False)),
    ]  # fmt: skip
    for chance in chances:
        with Checkpoints(tmp_path, Retention(2), in_background=True) as checkpoints:
            checkpoints.save(10, content(), is_best=False)
            with pytest.raises(
                CheckpointError, match="_00000010 cannot be written: ZeroDivisionError: a bug"
            ):
                chance(checkpoints)
    expected = pytest.raises(CheckpointError, match="a bug")
    with expected, Checkpoints(tmp_path, Retention(2), in_background=True) as checkpoints:
        checkpoints.save(10, content(), is_best=False)


def test_what_is_written_in_the_background_is_the_state_at_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what a save that waits writes, though training goes on before a byte is written."""
    weight, group = torch.arange(6.0).reshape(2, 3), {"lr": 0.1, "betas": [0.9]}
    state = Checkpoint({"w": weight, "tied": weight, "t": weight.t()}, {"group": group, "sums": weight[0]})
    save_file, goes_on, written = storage.save_file, threading.Event(), list[int]()

    def waiting(*arguments: Any) -> None:
        assert goes_on.wait(60)
        save_file(*arguments)

    with Checkpoints(tmp_path / "waits", Retention(2)) as checkpoints:
        checkpoints.save(10, state, is_best=False)
    monkeypatch.setattr(storage, "save_file", waiting)
    with Checkpoints(tmp_path / "goes_on", Retention(2), in_background=True) as checkpoints:
        checkpoints.save(10, state, is_best=False, written=lambda: written.append(10))
        weight.zero_()
        group["lr"] = 0.2
        group["betas"].clear()
        assert newest_whole(tmp_path / "goes_on") is None
        assert not checkpoints.has_failed()
        assert not written
        goes_on.set()
    assert written == [10]
    one, other = (
        {p.name: p.read_bytes() for p in (tmp_path / name / "update_00000010").iterdir()}
        for name in ("waits", "goes_on")
    )
    assert one == other
    assert load_file(tmp_path / "goes_on/last/model.safetensors")["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_save_is_copied_over_the_one_before() -> None:
    """Into its memory where that fits; what has another shape or type gets memory of its own."""
    first = Snapshot.of(
        Checkpoint({"a": torch.zeros(3), "b": torch.zeros(3), "gone": torch.zeros(1)}, {}), is_rank_zero=True
    )
    states = {"a": torch.ones(2, 3).t()[:, 0], "b": torch.ones(4), "new": torch.ones(1)}
    second = Snapshot.of(Checkpoint(states, {}), is_rank_zero=True, over=first)
    before, after = first.parts["model"], second.parts["model"]
    assert after.keys() == states.keys()
    assert all(torch.equal(after[name], value) for name, value in states.items())
    assert after["a"].data_ptr() == before["a"].data_ptr()
    assert before["b"].tolist() == [0, 0, 0]


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from hydrant.checkpoint import Checkpoint, Checkpoints, Retention, storage
from hydrant.distributed import World

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

seal = storage.seal
with World.from_launcher().group(), Checkpoints(Path(sys.argv[1]), Retention(2), in_background=True) as checkpoints:
    for num_updates in (10, 20):
        if num_updates == 20:
            checkpoints.wait()
            storage.seal = kill  # when the first file is written
        checkpoints.save(num_updates, Checkpoint({"w": torch.ones(3)}, {"state": {}}), is_best=False)
"""


def test_kill_9_in_the_middle_of_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    assert names(tmp_path) == [".update_00000020", "last", "update_00000010"]
    assert (tmp_path / ".update_00000020" / "model.safetensors").is_file()
    assert newest_whole(tmp_path) == tmp_path / "update_00000010"
    save(tmp_path, 20)
    assert names(tmp_path) == ["last", "update_00000010", "update_00000020"]


def test_a_kill_while_old_ones_are_removed_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 10, keep=Retention(1))

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            (path / "model.safetensors").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 20, keep=Retention(1))
    assert newest_whole(tmp_path) == tmp_path / "update_00000020"
    save(tmp_path, 30, keep=Retention(1))
    assert names(tmp_path) == ["last", "update_00000030"]


def test_what_is_published_is_on_disk_by_name_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, rename, seen = os.fsync, Path.rename, list[Any]()

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        seen.append(os.fstat(descriptor).st_ino)

    def renamed(path: Path, target: Path) -> Path:
        if path.name.startswith(".update_") and target.name.startswith("update_"):
            seen.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    save(tmp_path / "run", 10)
    saved, seen = seen, []
    adopted = Folder(tmp_path / "adopted", Retention(2))
    adopted.adopt(tmp_path / "run" / "update_00000010", None)
    for folder, order in (("run", saved), ("adopted", seen)):
        target = tmp_path / folder / "update_00000010"
        before, after = order[: order.index("renamed")], order[order.index("renamed") :]
        assert {path.stat().st_ino for path in (*target.iterdir(), target)} <= {*before}
        assert target.parent.stat().st_ino in after


def test_a_kill_while_another_run_s_is_taken_over_leaves_the_one_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "theirs", 10, 20, best=(10,))
    copytree, copied = shutil.copytree, list[Path]()

    def killed(source: Path, *arguments: Any, **options: Any) -> None:
        if copied:
            raise KeyboardInterrupt
        copied.append(source)
        copytree(source, *arguments, **options)

    monkeypatch.setattr(shutil, "copytree", killed)
    with pytest.raises(KeyboardInterrupt):
        Folder(tmp_path / "ours", Retention(2)).adopt(tmp_path / "theirs" / "update_00000020", 10)
    assert newest_whole(tmp_path / "ours") == tmp_path / "ours" / "update_00000020"


def test_ranks_wait_for_each_other_s_parts_as_long_as_they_are_told(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, Retention(2), timeout_seconds=7) as checkpoints:
        backend: Any = checkpoints._group._get_backend(torch.device("cpu"))  # pyright: ignore[reportPrivateUsage]
        assert backend.options._timeout.total_seconds() == 7


def test_newest_goes_by_the_folders_not_by_the_link(tmp_path: Path) -> None:
    """A kill between the rename and the new link must not lose the checkpoint."""
    save(tmp_path, 99_999_999, 100_000_000, keep=Retention(9))
    (tmp_path / "last").unlink()
    (tmp_path / "last").symlink_to("update_99999999")
    newest = newest_whole(tmp_path)
    assert newest is not None
    assert newest.name == "update_100000000"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "found"),
    [(cut, r"has \d+ bytes instead of"), (flip, "holds other bytes"), (Path.unlink, "cannot be read")],
)
@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "training.json", "manifest.json"]
)
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    name: str, harm: Callable[[Path], None], found: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "manifest.json":
        found, harm = r"cannot be read \(", harm if harm is Path.unlink else lambda file: file.write_text("{")
    run, path = tmp_path / "run", tmp_path / "run" / "checkpoints"
    save(path, 10, 20)
    assert damage(path / "update_00000020") == ""
    harm(path / "update_00000020" / name)
    assert newest_whole(path) == find(run, "resume") == path / "update_00000010"
    assert told(caplog)
    assert all(name in line and "update_00000010 is the newest" in line for line in told(caplog))
    with pytest.raises(
        CheckpointError, match=rf"update_00000020/{name} {found}.*; remove .*update_00000020 to use"
    ):
        find(path / "last", "resume")
    flip(path / "update_00000010" / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"is whole: .*_00000020/{name} {found}.*; .*_00000010/model"):
        newest_whole(path)
    save(path, 20)  # takes the place of the damaged one
    assert newest_whole(path) == path / "update_00000020"


def test_absence_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"resume: .* holds no checkpoint"):
        find(tmp_path, "resume")
    with pytest.raises(ConfigError, match=r"resume: .* does not exist"):
        find(tmp_path / "nowhere", "resume")


class Harm:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("harmed"),)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "training.json", "manifest.json"]
)
def test_nothing_of_a_stranger_s_checkpoint_is_run(name: str, workdir: Path) -> None:
    """A pickle that would do harm, where a file of the checkpoint or of torch.distributed.checkpoint should be."""
    save(workdir / "checkpoints", 10)
    path = workdir / "checkpoints" / "update_00000010"
    planted = pickle.dumps(Harm())
    pickle.loads(planted)
    assert Path("harmed").exists()  # it works
    Path("harmed").unlink()
    for file in (path / ".metadata", path / "__0_0.distcp", path / name):
        file.write_bytes(planted)
    if name != "manifest.json":  # a stranger knows how to write one
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["files"][name] = storage.seal(path / name)
        (path / "manifest.json").write_text(json.dumps(manifest))
    readers: dict[str, Callable[[], Any]] = {
        "manifest.json": lambda: find(path, "resume"),
        "model.safetensors": lambda: Weights(path).read("init_from"),
        "training.safetensors": lambda: read_state(path, "sums"),
        "training.json": lambda: plain_state(path, "state"),
    }
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read \("):
        readers[name]()
    for read in readers.values():
        with contextlib.suppress(CheckpointError):
            read()
    assert not Path("harmed").exists()


def test_a_manifest_names_files_of_its_folder_alone(tmp_path: Path) -> None:
    save(tmp_path, 10)
    manifest = tmp_path / "update_00000010" / "manifest.json"
    manifest.write_text(json.dumps({"files": {"../../secret": {"size": 1, "sha256": ""}}}))
    assert "which is no file of the checkpoint" in damage(tmp_path / "update_00000010")


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {"betas": (0.9, 0.99), "rows": [{"$tensor": 1}, {1: None, "a": torch.tensor(2)}], "infinite": float("inf"),
             "half": torch.ones(2, 0, dtype=torch.bfloat16), "flag": torch.tensor(True), "a.b": torch.zeros(1),
             "a": {"b": torch.ones(1)}}  # fmt: skip
    with Checkpoints(tmp_path, Retention(2)) as checkpoints:
        checkpoints.save(10, Checkpoint({"w": torch.ones(1)}, {"state": state}), is_best=False)
    again = read_state(tmp_path / "last", "state")
    assert_same_state(again, state)
    assert isinstance(again["betas"], tuple)
    assert again["half"].dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match="holds no other"):
        read_state(tmp_path / "last", "other")


def test_a_real_one_needs_none_of_hydrant_s_code(train: Callable[..., Path]) -> None:
    path = (
        train("tracker=local", "duration=2", "optimizer=timm", "optimizer.name=lookahead_adamw")
        / "checkpoints"
    )
    assert names(path / "last") == [
        "manifest.json", "model.safetensors", "training.json", "training.safetensors"
    ]  # fmt: skip
    assert {key.split(".")[0] for key in load_file(path / "last" / "model.safetensors")} == {
        "hidden",
        "classifier",
    }
    groups = plain_state(path / "last", "optimization")["optimizers"]["main"]["param_groups"]
    assert groups[0]["params"][0] == "model.hidden.0.0.weight"
    modes = {file.stat().st_mode & 0o777 for file in (path / "last").iterdir()}
    assert len(modes) == 1  # whoever may read one may read all
