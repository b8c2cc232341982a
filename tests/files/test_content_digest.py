"""Digests of files: equal for equal contents, and another one for every change of a small file."""

from pathlib import Path

import pytest

from hydrant.files.on_disk import BLOCK_BYTES, SMALL, digest_of, split_digests


def test_a_digest_tells_contents_apart_and_not_names(tmp_path: Path) -> None:
    contents = [b"", b"a", b"b", b"ab", bytes(BLOCK_BYTES), bytes(BLOCK_BYTES + 1)]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    (copy := tmp_path / "copy").write_bytes(b"ab")
    assert len({digest_of([path]) for path in paths}) == len(contents)
    assert digest_of([copy]) == digest_of([paths[3]])
    assert digest_of([paths[1], paths[2]]) not in {digest_of([paths[2], paths[1]]), digest_of([paths[3]])}


def test_of_a_large_file_some_blocks_are_read(tmp_path: Path) -> None:
    path, size = tmp_path / "large", SMALL + 1
    digests = set[str]()
    for changed in (None, 0, size - 1):  # the first and the last byte are in a block
        path.write_bytes(b"")
        with path.open("r+b") as opened:
            opened.truncate(size)
            if changed is not None:
                opened.seek(changed)
                opened.write(b"x")
        digests.add(digest_of([path]))
    assert len(digests) == 3


def test_splits_that_are_files_or_folders_of_few_files_have_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of_folder = ("folder/inputs.npy", "folder/targets.npy", "folder/.DS_Store")
    for name in ("train.csv", *of_folder, *(f"many/{n}.png" for n in range(17))):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name)
    Path("nested/inner").mkdir(parents=True)
    names = {"night": "train.csv", "missing": "none.csv", "images": "many", "nested": "nested"}
    paths = {"train": "train.csv", "val": "folder", "test": "x" * 300} | {
        f"extra_val.{n}": x for n, x in names.items()
    }
    splits = {name: Path(path) for name, path in paths.items()}
    digests = split_digests(splits)
    assert digests.keys() == {"train", "val", "extra_val.night"}
    assert digests["train"] == digests["extra_val.night"]
    Path("folder/.DS_Store").write_text("changed")
    assert split_digests(splits) == digests
