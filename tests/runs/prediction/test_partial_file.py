"""A partial file holds whole batches, wherever its writer was killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydrant.errors import ConfigError
from hydrant.runs.prediction.partial_file import PartialFile
from hydrant.training.prediction import Arrays

IDENTITY = {"weights": "a", "inputs": "b"}


def batch(number: int) -> Arrays:
    numbers = np.arange(3 * number, 3 * number + 3)
    return {"numbers": numbers, "file": numbers.astype(np.float32) / 7}


def fill(path: Path, count: int) -> None:
    with PartialFile.open(path, IDENTITY) as partial:
        for number in range(count):
            partial.append(batch(number))


def test_it_continues_after_the_last_whole_batch_of_any_length(tmp_path: Path) -> None:
    fill(path := tmp_path / "partial", 2)
    one_batch = tmp_path / "one"
    fill(one_batch, 1)
    whole, size = path.read_bytes(), one_batch.stat().st_size
    for length in (*range(0, len(whole), 37), size - 1, size, len(whole) - 1, len(whole)):
        path.write_bytes(whole[:length])
        with PartialFile.open(path, IDENTITY) as partial:
            count = (length >= size) + (length == len(whole))
            assert (partial.num_rows, partial.next_number) == (3 * count, 3 * count)
            for number in range(count, 2):
                partial.append(batch(number))
            records = list(partial.records())
        assert path.read_bytes() == whole
        for number, record in enumerate(records):
            assert all(np.array_equal(record[name], array) for name, array in batch(number).items())


@pytest.mark.parametrize("content", [b"\0" * 100, b"{}\n", b"[[1]]\n", b"{" * 20_000, b'{"weights": "a"}\n'])
def test_what_is_no_partial_file_is_replaced(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "partial").write_bytes(content)
    with PartialFile.open(path, IDENTITY) as partial:
        assert partial.num_rows == 0
    assert "starting anew" in capsys.readouterr().err


def test_damaged_records_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path := tmp_path / "partial", 2)
    content = bytearray(path.read_bytes())
    content[-300:-200] = b"\xff" * 100
    path.write_bytes(content)
    with PartialFile.open(path, IDENTITY) as partial:
        assert partial.num_rows == 0
    assert f"{path} is damaged; starting anew" in capsys.readouterr().err


def test_batches_of_other_shapes_are_refused(tmp_path: Path) -> None:
    with PartialFile.open(tmp_path / "partial", IDENTITY) as partial:
        partial.append({"numbers": np.arange(2), "tokens": np.zeros((2, 5), np.float32)})
        with pytest.raises(
            ConfigError, match=r"'tokens' of a sample is float32 \[5\] in one batch and float32 \[6\]"
        ):
            partial.append({"numbers": np.arange(2, 4), "tokens": np.zeros((2, 6), np.float32)})
