"""Files that a run maps into memory and another program changes: without the check, reading them kills the process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hydrant.data.memmap import Arrays
from hydrant.data.token_files import token_files
from hydrant.data.tokens import TokenShards
from hydrant.errors import DataError

NUM_TOKENS = 100_000


def tokens_in(folder: Path) -> tuple[Path, Callable[[], object]]:
    """Return the second of two files of tokens, and what reads a sequence at its end."""
    for name in "ab":
        np.zeros(NUM_TOKENS, np.uint16).tofile(folder / f"{name}.bin")
    shards = TokenShards(token_files("", str(folder / "*.bin"), "uint16", "data.train"))
    return folder / "b.bin", lambda: shards.windows([2 * NUM_TOKENS // 10 - 2], 10)


def tokens_in_a_row(folder: Path) -> tuple[Path, Callable[[], object]]:
    path, _ = tokens_in(folder)
    shards = TokenShards(token_files("", str(path), "uint16", "data.train"))
    return path, lambda: shards.read(NUM_TOKENS - 10, 10)


def array_in(folder: Path) -> tuple[Path, Callable[[], object]]:
    """Return the inputs of a folder, and what reads the last sample in a worker."""
    np.save(folder / "inputs.npy", np.zeros((50_000, 2)))
    arrays = pickle.loads(pickle.dumps(Arrays.open("data.train", folder)))
    return folder / "inputs.npy", lambda: arrays[49_999]


@pytest.mark.parametrize("make", [tokens_in, tokens_in_a_row, array_in])
def test_a_file_that_becomes_shorter_is_named(
    make: Callable[[Path], tuple[Path, Callable[[], object]]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, read = make(tmp_path)
    read()
    size = path.stat().st_size
    os.utime(path, (0, 0))
    read()
    read()
    [warning] = caplog.messages
    assert warning.startswith(f"{path} was written while this run reads it")
    os.truncate(path, 1000)
    with pytest.raises(DataError, match="has become shorter") as caught:
        read()
    assert f"{path} has become shorter while this run reads it: 1,000 bytes instead of {size:,}" in str(
        caught.value
    )


def test_a_file_that_is_shorter_before_its_first_batch_is_named(tmp_path: Path) -> None:
    path, read = tokens_in(tmp_path)
    os.truncate(path, 1000)
    with pytest.raises(DataError, match="has become shorter"):
        read()


def test_another_file_in_its_place_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, read = tokens_in(tmp_path)
    read()
    (tmp_path / "new").touch()
    (tmp_path / "new").replace(path)
    read()
    assert not caplog.messages
