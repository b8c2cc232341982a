"""Files that Hydrant keeps beside those of the user: no link leads a write to another file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hydrant.data.archive import _download_lock
from hydrant.files.atomic_write import locked, remove_temporary, replace_file, replacing

NOTES = "my notes\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the user elsewhere, to which links lead."""
    (path := tmp_path / "elsewhere").write_text(NOTES)
    return path


def test_a_planted_temporary_file_is_replaced_and_not_followed(mine: Path, tmp_path: Path) -> None:
    temporary = tmp_path / f".result.json.{os.getpid()}.tmp"
    temporary.symlink_to(mine)
    replace_file(tmp_path / "result.json", "new\n")
    assert (tmp_path / "result.json").read_text() == "new\n"
    assert not (tmp_path / "result.json").is_symlink()
    assert mine.read_text() == NOTES
    assert not temporary.is_symlink()


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (path := tmp_path / "result.json").write_text("old\n")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", "text"])  # pyright: ignore[reportArgumentType]
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_write_removes_what_killed_writes_of_the_same_file_have_left(mine: Path, tmp_path: Path) -> None:
    left = [tmp_path / f".result.json.{pid}.tmp" for pid in (123, os.getpid())]
    kept = [tmp_path / name for name in (".other.json.123.tmp", ".result.json.tmp", "result.json.123.tmp")]
    for file in (*left, *kept):
        file.write_text("half")
    (link := tmp_path / ".result.json.4.tmp").symlink_to(mine)
    os.mkfifo(pipe := tmp_path / ".result.json.5.tmp")
    replace_file(tmp_path / "result.json", "new\n")
    assert {*tmp_path.iterdir()} == {*kept, link, pipe, mine, tmp_path / "result.json"}
    assert mine.read_text() == NOTES


def test_a_file_that_is_being_written_is_no_left_one(tmp_path: Path) -> None:
    path, mine = tmp_path / "result.json", os.getpid()
    with replacing(path) as file:
        [temporary] = tmp_path.iterdir()
        other = temporary.rename(tmp_path / f".result.json.{mine + 1}.tmp")  # as of another process
        replace_file(path, "faster\n")
        remove_temporary(tmp_path)
        assert {*tmp_path.iterdir()} == {path, other}
        other.rename(temporary)
        file.write(b"slower\n")
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]
    assert path.read_text() == "slower\n"


def test_without_locks_a_file_that_has_not_changed_for_a_minute_is_a_left_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    (old := tmp_path / ".result.json.1.tmp").write_text("half")
    os.utime(old, (0, 0))
    (new := tmp_path / ".result.json.2.tmp").write_text("half")
    replace_file(path := tmp_path / "result.json", "whole\n")
    assert {*tmp_path.iterdir()} == {path, new}


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, mine: path.symlink_to(mine),
    "dangling link": lambda path, mine: path.symlink_to(mine.with_name("nothing")),
    "folder": lambda path, mine: path.mkdir(),
    "pipe": lambda path, mine: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_lock_is_a_file(kind: str, mine: Path, tmp_path: Path) -> None:
    for name, hold in (
        (".download.lock", lambda: _download_lock(tmp_path)),
        ("db.lock", lambda: locked(tmp_path / "db.lock")),
    ):
        PLANTED[kind](tmp_path / name, mine)
        with pytest.raises(FileExistsError, match="something else than a file of Hydrant"), hold():
            pass
    assert mine.read_text() == NOTES
    assert not mine.with_name("nothing").exists()


def test_the_content_of_a_lock_is_kept(tmp_path: Path) -> None:
    (path := tmp_path / "lock").write_text(NOTES)
    with locked(path):
        pass
    assert path.read_text() == NOTES
