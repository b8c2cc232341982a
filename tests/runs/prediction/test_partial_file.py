"""A partial file holds whole batches, wherever its writer was killed."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from hydrant.errors import ConfigError
from hydrant.runs.prediction.npz import write_arrays
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


@pytest.mark.parametrize(
    "content", [b"\0" * 100, b"{}\n", b"[[1]]\n", b"{" * 20_000, b'{"weights": "a"}\n', b"my notes", b"\n"]
)
def test_a_file_of_something_else_is_refused_and_kept(content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "partial").write_bytes(content)
    with pytest.raises(ConfigError, match=r"--out: .*partial, .* is a file of something else; move it"):
        fill(path, 1)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "folder", "pipe"])
def test_what_is_no_file_of_predictions_is_not_opened(kind: str, tmp_path: Path) -> None:
    path, mine = tmp_path / "partial", tmp_path / "mine"
    mine.write_text("my notes\n")
    make = {
        "link": lambda: path.symlink_to(mine),
        "dangling link": lambda: path.symlink_to(tmp_path / "nothing"),
        "hard link": lambda: path.hardlink_to(mine),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
    }
    make[kind]()
    with pytest.raises((ConfigError, FileExistsError)):
        fill(path, 1)
    assert mine.read_text() == "my notes\n"
    assert not (tmp_path / "nothing").exists()


def test_predictions_of_other_weights_are_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(path := tmp_path / "partial", 2)
    with PartialFile.open(path, IDENTITY | {"weights": "other"}) as partial:
        assert partial.num_rows == 0
    assert f"{path} was made with other weights; starting again" in capsys.readouterr().err


def forged(*records: Arrays) -> bytes:
    content = [(json.dumps(IDENTITY) + "\n").encode()]
    for arrays in records:
        write_arrays(stream := io.BytesIO(), arrays)
        content += [len(stream.getbuffer()).to_bytes(8, "little"), stream.getvalue()]
    return b"".join(content)


FORGED = {
    "doubled": [batch(0), batch(0)],
    "in another order": [batch(1), batch(0)],
    "doubled in a record": [{"numbers": np.array([0, 0]), "file": np.zeros(2, np.float32)}],
    "no numbers": [{"file": np.zeros(2, np.float32)}],
    "numbers that are texts": [{"numbers": np.array(["a", "b"])}],
    "numbers in a table": [{"numbers": np.zeros((2, 2), int)}],
    "empty": [{"numbers": np.zeros(0, int)}],
    "too few rows": [batch(0) | {"file": np.zeros(2, np.float32)}],
    "another shape": [batch(0), batch(1) | {"file": np.zeros((3, 2), np.float32)}],
    "another type": [batch(0), batch(1) | {"file": np.array(["a", "b", "c"])}],
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_records_are_replaced(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "partial").write_bytes(forged(*FORGED[kind]))
    with PartialFile.open(path, IDENTITY) as partial:
        assert partial.num_rows == 0
    assert f"{path} is damaged; starting again" in capsys.readouterr().err


def test_damaged_records_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path := tmp_path / "partial", 2)
    content = bytearray(path.read_bytes())
    content[-300:-200] = b"\xff" * 100
    path.write_bytes(content)
    with PartialFile.open(path, IDENTITY) as partial:
        assert partial.num_rows == 0
    assert f"{path} is damaged; starting again" in capsys.readouterr().err


def test_batches_of_other_shapes_are_refused(tmp_path: Path) -> None:
    with PartialFile.open(tmp_path / "partial", IDENTITY) as partial:
        partial.append({"numbers": np.arange(2), "tokens": np.zeros((2, 5), np.float32)})
        with pytest.raises(
            ConfigError, match=r"'tokens' of a sample is float32 \[5\] in one batch and float32 \[6\]"
        ):
            partial.append({"numbers": np.arange(2, 4), "tokens": np.zeros((2, 6), np.float32)})
