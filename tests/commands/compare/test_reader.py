"""A reader of runs that is kept reads what has changed, whatever happens to the files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from planted import write_run

from hydrant.commands.compare.sources import RunReader, read_runs
from hydrant.errors import RecordError
from hydrant.runs import folder as folder_module
from hydrant.runs import record as rows_module
from hydrant.runs.record import GrowingRows


def test_only_changed_files_and_new_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [write_run(tmp_path / f"{n}", {"seed": n}, 0.9, num_rows=50) for n in range(5)]
    configs, rows = list[Path](), list[bytes]()
    read_yaml, parse_row = folder_module.read_yaml, rows_module.parse_row
    monkeypatch.setattr(
        folder_module,
        "read_yaml",
        lambda path, *args, **options: (configs.append(path), read_yaml(path, *args, **options))[1],
    )
    monkeypatch.setattr(rows_module, "parse_row", lambda line: (rows.append(line), parse_row(line))[1])
    reader = RunReader()
    first = read_runs([str(tmp_path)], reader=reader)
    assert len(rows) == 250
    configs.clear(), rows.clear()
    second = read_runs([str(tmp_path)], reader=reader)
    assert configs == []
    assert rows == []
    assert second == first
    with (runs[2] / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 200, "val/accuracy": 0.95}\n')
    third = read_runs([str(tmp_path)], reader=reader)
    assert rows == [b'{"num_updates": 200, "val/accuracy": 0.95}\n']
    assert [path for path in configs if path.name == "config.yaml"] == []
    assert third != second
    assert third[2].series["val/accuracy"].values[-1] == 0.95
    assert third[1].series is second[1].series


def test_growing_rows_equal_the_whole_file_whatever_happens_to_it(tmp_path: Path) -> None:
    path, rows = tmp_path / "metrics.jsonl", GrowingRows(tmp_path / "metrics.jsonl")

    def line(n: int, value: float = 1.0) -> str:
        return json.dumps({"num_updates": n, "train/loss": value}) + "\n"

    def updates() -> list[int]:
        found = rows.read()
        assert found == GrowingRows(path).read()
        return [row["num_updates"] for row in found]

    assert updates() == []
    path.write_text(line(1) + line(2) + line(3)[:9])
    assert updates() == [1, 2], "a half-written line is not read"
    with path.open("a") as file:
        file.write(line(3)[9:] + line(4))
    assert updates() == [1, 2, 3, 4]
    with path.open("r+") as file:  # a resume cuts rows in place and writes others, of the same length
        file.truncate(len(line(1) * 2))
        file.seek(0, os.SEEK_END)
        file.write(line(7) + line(8) + line(9))
    assert updates() == [1, 2, 7, 8, 9]
    (tmp_path / "other").write_text(line(5))
    (tmp_path / "other").replace(path)
    assert updates() == [5]
    path.write_text("")
    assert updates() == []
    path.write_text(line(1) + "damaged\n")
    with pytest.raises(RecordError, match="damaged"):
        rows.read()
    path.write_text(line(1) + line(6))
    assert updates() == [1, 6], "and it is read again when it is whole"
    path.unlink()
    assert updates() == []
    path.symlink_to(tmp_path / "nothing")
    with pytest.raises(RecordError, match=r"cannot be read \(No such file"):
        rows.read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordError, match="a pipe"):
        rows.read()
