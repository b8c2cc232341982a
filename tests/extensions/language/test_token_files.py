"""The files of data=tokens, and the settings of the config that they decide."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from special_files import check_refuses_pipe, ends, options
from token_folders import write_bin

from hydrant.errors import DataError
from hydrant.extensions.language import tokens
from hydrant.extensions.language.token_files import (
    BYTES,
    fingerprint,
    new_folder,
    read_vocabulary,
    token_files,
)

__all__ = ["ends"]


def damaged(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        token_files(str(path.parent), path.name, "uint16", "data.train")
    return str(error.value)


def header(*numbers: int) -> bytes:
    return np.array([*numbers, *[0] * (256 - len(numbers))], dtype="<i4").tobytes()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_header_gives_the_type_and_the_number_of_tokens(dtype: str, tmp_path: Path) -> None:
    tokens = np.array([0, 1, np.iinfo(dtype).max])
    for has_header in (True, False):
        write_bin(tmp_path / "a.bin", tokens, dtype, header=has_header)
        [file] = token_files(str(tmp_path), "a.bin", dtype, "data.train")
        assert file.mapped().tolist() == tokens.tolist()


def test_files_of_a_glob_are_in_the_order_of_their_names_and_those_of_a_list_in_its_order(
    tmp_path: Path,
) -> None:
    for name in ("b", "a", "[1]"):
        write_bin(tmp_path / f"{name}.bin", np.arange(3))
    globbed = token_files(str(tmp_path), "*.bin", "uint16", "data.train")
    assert [file.path.name for file in globbed] == ["[1].bin", "a.bin", "b.bin"]
    listed = token_files(str(tmp_path), ["b.bin", "[1].bin"], "uint16", "data.train")
    assert [file.path.name for file in listed] == ["b.bin", "[1].bin"]


def test_files_that_hold_no_tokens_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    assert "1,030 bytes, but 4 tokens of uint16 take 1,032" in damaged(
        file, header(20240520, 1, 4) + b"123456"
    )
    assert "3 bytes, but 1 tokens of uint16 take 2; is it cut off?" in damaged(file, b"123")
    assert "has no tokens" in damaged(file, b"")
    np.save(tmp_path / "b.npy", np.zeros((2, 2), dtype=np.int64))
    with pytest.raises(DataError, match="tokens are whole numbers"):
        token_files(str(tmp_path), "b.npy", "uint16", "data.train")


@pytest.mark.parametrize("size", [1000, 9_000_000])
def test_another_fingerprint_means_other_tokens(size: int, tmp_path: Path) -> None:
    tokens = np.arange(size) % 60_000

    def of(values: np.ndarray, name: str = "a.bin") -> str:
        write_bin(tmp_path / name, values)
        return fingerprint({"train": token_files(str(tmp_path), name, "uint16", "data.train")})

    first = of(tokens)
    assert of(tokens, "b.bin") == first  # the same tokens elsewhere
    last_changed, one_more = tokens.copy(), np.append(tokens, 0)
    last_changed[-1] += 1
    assert len({first, of(last_changed), of(one_more), of(tokens + 1)}) == 4


def test_a_vocabulary_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path) is None
    BYTES.write(tmp_path)
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary is not None
    assert (vocabulary.size, vocabulary.separator, list(vocabulary.token_bytes)) == (
        257,
        256,
        [1] * 256 + [0],
    )


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_damaged_vocabulary_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(text)
    with pytest.raises(DataError, match=r"tokens\.json"):
        read_vocabulary(tmp_path)


def test_a_new_folder_removes_what_a_killed_process_has_left_of_it(tmp_path: Path) -> None:
    (left := tmp_path / ".tokens.tmp").mkdir()
    (left / "train_000001.bin").write_bytes(b"half")
    (other := tmp_path / ".tokens_2.tmp").mkdir()
    with new_folder(tmp_path / "tokens") as folder:
        (folder / "train_000000.bin").touch()
    assert {*tmp_path.iterdir()} == {tmp_path / "tokens", other}
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["train_000000.bin"]


READERS: dict[str, Callable[[Path], Any]] = {
    "own.bin": lambda file: tokens(**options("tokens", root=str(file.parent), train=file.name, vocab_size=9)),
    "own.npy": lambda file: tokens(**options("tokens", root=str(file.parent), train=file.name, vocab_size=9)),
    "tokens.json": lambda file: tokens(
        **options("tokens", root=str(file.parent), train="t.bin", val="t.bin", dtype="uint16")
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_in_the_place_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    check_refuses_pipe(READERS[name], name, tmp_path)
