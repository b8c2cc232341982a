"""The rows of a run: which a resumed run keeps, and which are on disk."""

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hydrant.errors import RecordError
from hydrant.runs.folder import RunFolder
from hydrant.runs.lock import exclusive
from hydrant.runs.record import History, JsonLines, RunRecord, read_rows


def write_rows(file: Path, *updates: int, tail: bytes = b"") -> None:
    file.write_bytes("".join(f"{json.dumps({'num_updates': n})}\n" for n in updates).encode() + tail)


@pytest.mark.parametrize(
    "tail", [b"", b"\0" * 4096 + b"\n", b"\xff\xfe\n", b'{"num_upd', b"[" * 100_000 + b"\n"]
)
def test_bytes_behind_the_rows_of_the_checkpoint_are_not_read(tail: bytes, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write_rows(file, 0, 1, 2, tail=tail)
    with closing(JsonLines(file, History(RunFolder(tmp_path), 2, {"metrics.jsonl": 3}))) as lines:
        lines.append({"num_updates": 3})
    assert [row["num_updates"] for row in read_rows(file)] == [0, 1, 2, 3]
    assert lines.num_rows == 4


def test_a_run_that_starts_afresh_reads_no_rows(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\0\xff\n")
    with closing(JsonLines(tmp_path / "metrics.jsonl", History(RunFolder(tmp_path)))) as lines:
        assert lines.num_rows == 0
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_missing_rows_are_logged(tmp_path: Path, logged_warnings: Callable[[], list[str]]) -> None:
    write_rows(tmp_path / "metrics.jsonl", 0, 1)
    JsonLines(tmp_path / "metrics.jsonl", History(RunFolder(tmp_path), 2, {"metrics.jsonl": 3})).close()
    [warning] = logged_warnings()
    assert "metrics.jsonl has 2 of the 3 rows that the checkpoint of update 2 counts" in warning


def test_a_damaged_row_of_the_checkpoint_is_an_error(tmp_path: Path) -> None:
    write_rows(tmp_path / "metrics.jsonl", 0, tail=b"\0\n")
    with pytest.raises(RecordError, match=r"metrics\.jsonl is damaged"):
        JsonLines(tmp_path / "metrics.jsonl", History(RunFolder(tmp_path), 2, {"metrics.jsonl": 2}))


def test_rows_and_the_names_of_their_files_are_flushed_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, synced = os.fsync, set[int]()

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    folder = tmp_path / "outputs" / "run"
    (folder / ".hydra").mkdir(parents=True)
    with exclusive(folder):
        record = RunRecord(folder, History(RunFolder(folder)))
        record.metrics.append({"num_updates": 1})
        # Without histograms, the number is 0, also if a kill has left an empty file.
        assert record.num_rows() == {"metrics.jsonl": 1, "histograms.jsonl": 0}
        record.histograms(1, {})
        monkeypatch.setattr(os, "fsync", record_fsync)
        record.sync()
        record.close()
    files = (folder / "metrics.jsonl", folder / "histograms.jsonl")
    expected = (*files, folder / ".hydra", folder, folder.parent)
    assert {path.stat().st_ino for path in (*expected, tmp_path)} <= synced
    assert record.num_rows() == {"metrics.jsonl": 1, "histograms.jsonl": 1}
