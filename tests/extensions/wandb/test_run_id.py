"""The id of a run at a tracker: of a new run, a moved folder and a copied one."""

import shutil
from pathlib import Path

import pytest

from hydrant.trackers import keep_id, read_id

FILE = Path("tracker", "run-id")


def test_a_moved_folder_keeps_its_id_and_a_copied_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    assert read_id(run, FILE) is None
    keep_id(run, FILE, "abc")
    assert read_id(run, FILE) == b"abc"
    (link := tmp_path / "link").symlink_to(run)
    assert read_id(link, FILE) == b"abc"
    assert not caplog.messages
    copied = Path(shutil.copytree(run, tmp_path / "copy"))
    assert read_id(copied, FILE) is None
    assert f"{copied} is a copy of {run}: it is another run of the tracker" in caplog.messages[0]
    keep_id(copied, FILE, "def")
    assert (read_id(run, FILE), read_id(copied, FILE)) == (b"abc", b"def")
    moved = run.rename(tmp_path / "moved")
    assert read_id(moved, FILE) == b"abc"
    keep_id(moved, FILE, "abc")
    assert read_id(Path(shutil.copytree(moved, tmp_path / "run")), FILE) is None  # a copy at the old place


def test_an_id_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    keep_id(tmp_path, FILE, "abc")
    (tmp_path / "tracker" / "run-id-folder").unlink()
    assert read_id(tmp_path, FILE) == b"abc"
