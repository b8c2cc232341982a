"""Files that Hydrant keeps beside those of the user: no link leads a write to another file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hydrant.files.on_disk import locked, replace_file, replacing

NOTES = "my notes\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the user elsewhere, to which links lead."""
    (path := tmp_path / "elsewhere").write_text(NOTES)
    return path


def test_a_planted_temporary_file_is_replaced_and_not_followed(mine: Path, tmp_path: Path) -> None:
    temporary = tmp_path / ".result.json.tmp"
    temporary.symlink_to(mine)
    replace_file(tmp_path / "result.json", "new\n")
    assert (tmp_path / "result.json").read_text() == "new\n"
    assert not (tmp_path / "result.json").is_symlink()
    assert mine.read_text() == NOTES
    assert not temporary.is_symlink()


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (path := tmp_path / "result.json").write_text("old\n")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", "text"])
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_write_replaces_what_a_killed_write_of_the_same_file_has_left(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in (".other.json.tmp", "result.json.tmp")]
    for file in (tmp_path / ".result.json.tmp", *kept):
        file.write_text("longer than the new text")
    replace_file(tmp_path / "result.json", "new\n")
    assert {*tmp_path.iterdir()} == {*kept, tmp_path / "result.json"}
    assert (tmp_path / "result.json").read_text() == "new\n"


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, mine: path.symlink_to(mine),
    "dangling link": lambda path, mine: path.symlink_to(mine.with_name("nothing")),
    "folder": lambda path, mine: path.mkdir(),
    "pipe": lambda path, mine: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_lock_is_a_file(kind: str, mine: Path, tmp_path: Path) -> None:
    PLANTED[kind](tmp_path / "db.lock", mine)
    with (
        pytest.raises(FileExistsError, match="something else than a file of Hydrant"),
        locked(tmp_path / "db.lock"),
    ):
        pass
    assert mine.read_text() == NOTES
    assert not mine.with_name("nothing").exists()


def test_the_content_of_a_lock_is_kept(tmp_path: Path) -> None:
    (path := tmp_path / "lock").write_text(NOTES)
    with locked(path):
        pass
    assert path.read_text() == NOTES
