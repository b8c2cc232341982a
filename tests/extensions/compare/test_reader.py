"""What is read of the rows of a run, whatever the file is."""

import json
import os
from pathlib import Path

import pytest
from planted import write_run

from hydrant.errors import RecordError
from hydrant.extensions.compare.sources import read_runs
from hydrant.runs.record import read_rows


def test_runs_equal_themselves_until_a_row_is_new(tmp_path: Path) -> None:
    """So a page is written again only then."""
    runs = [write_run(tmp_path / f"{n}", {"seed": n}, 0.9, num_rows=5) for n in range(3)]
    first, second = read_runs([str(tmp_path)]), read_runs([str(tmp_path)])
    assert second == first
    with (runs[2] / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 200, "val/accuracy": null}\n')
    third = read_runs([str(tmp_path)])
    assert [new == old for new, old in zip(third, first, strict=True)] == [True, True, False]
    assert read_runs([str(tmp_path)]) == third, "a missing number is equal to itself"


def test_whole_lines_are_read_and_damaged_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    def line(n: int, value: float = 1.0) -> str:
        return json.dumps({"num_updates": n, "train/loss": value}) + "\n"

    assert read_rows(path) == []
    path.write_text(line(1) + line(2) + line(3)[:9])
    assert [row["num_updates"] for row in read_rows(path)] == [1, 2], "a half-written line is not read"
    path.write_text(line(1) + "damaged\n")
    with pytest.raises(RecordError, match="damaged"):
        read_rows(path)
    assert len(read_rows(path, 1)) == 1, "what follows is not read"
    path.unlink()
    path.symlink_to(tmp_path / "nothing")
    with pytest.raises(RecordError, match=r"\(No such file"):
        read_rows(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordError, match="a pipe"):
        read_rows(path)
