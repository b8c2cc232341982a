"""MNIST and the data sets in its format: files as they come, which set they are, and that no file is written over."""

import gzip
import hashlib
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import IMAGES, STEMS, write_idx_set
from run_folders import rows
from training_runs import Train

from hydrant.data import Data
from hydrant.data.splits import cut_fold
from hydrant.errors import ConfigError, DataError
from hydrant.extensions import images as data_sets
from hydrant.extensions.images import archive
from hydrant.extensions.images.archive import statistics

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
EMNIST = tuple(f"emnist-letters-{stem}".replace("t10k", "test") for stem in STEMS)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, but for our lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".download.lock")
    return {str(path): path.read_bytes() for path in files}


def build(root: Path, variant: str = "mnist", **changes: Any) -> Data:
    options: dict[str, Any] = {
        "download": False, "val_ratio": 0.0, "split_seed": 0, "mean": None, "std": None, "augment": None,
        "input_shape": [1, 28, 28], "num_classes": 26 if variant == "emnist_letters" else 10,
    }  # fmt: skip
    return data_sets.mnist(root=str(root), variant=variant, **options | changes)


@pytest.mark.parametrize("folder", ["", "FashionMNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_files_are_read_as_they_come_from_both_places(tmp_path: Path, folder: str, zipped: bool) -> None:
    write_idx_set(tmp_path / folder, zipped=zipped)
    before = contents(tmp_path)
    data = build(tmp_path, "fashion_mnist", download=True)
    assert torch.equal(data.train.inputs, torch.from_numpy(IMAGES[:30, np.newaxis]))
    assert torch.equal(data.val.inputs, torch.from_numpy(IMAGES[30:, np.newaxis]))
    assert data.train.targets.tolist() == [n % 10 for n in range(30)]
    assert data.class_names[::9] == ("T-shirt/top", "Ankle boot")
    pixels = IMAGES[:30] / 255
    assert data.train.mean == pytest.approx([pixels.mean()], abs=1e-12)
    assert data.train.std == pytest.approx([pixels.std()], abs=1e-12)
    assert contents(tmp_path) == before
    assert data.statistics == {"mean": list(data.train.mean), "std": list(data.train.std)}
    assert data.with_statistics is not None
    # Of a checkpoint, whatever the files hold now.
    learned = data.with_statistics({"mean": [0.1], "std": [0.2]})
    assert (learned.train.mean, learned.val.std, learned.statistics["mean"]) == ([0.1], [0.2], [0.1])
    given = build(tmp_path, "fashion_mnist", mean=[0.5], std=[0.5])
    assert (given.statistics, given.with_statistics) == ({}, None)


@pytest.mark.parametrize("val_ratio", [0.0, 0.34])
def test_only_pixels_that_train_are_measured(tmp_path: Path, val_ratio: float) -> None:
    """Those of a validation fold, or of the validation part, stay unseen; those of a checkpoint stay as they are."""
    write_idx_set(tmp_path)
    whole = build(tmp_path, "fashion_mnist", val_ratio=val_ratio)
    for data in (whole, cut_fold(whole, 3, 1, 0), cut_fold(whole, 3, 2, 0)):
        pixels = data.train.inputs / 255
        assert data.train.mean == pytest.approx([float(pixels.mean())], abs=1e-6)
        assert data.train.std == pytest.approx([float(pixels.std(correction=0))], abs=1e-6)
        assert (data.val.mean, data.val.std) == (data.train.mean, data.train.std)
        assert data.statistics == {"mean": list(data.train.mean), "std": list(data.train.std)}
    assert (whole.train.num_samples < 30) == (val_ratio > 0)
    assert whole.with_statistics is not None
    learned = cut_fold(whole.with_statistics({"mean": [0.1], "std": [0.2]}), 3, 1, 0)
    assert (learned.train.mean, learned.val.std) == ([0.1], [0.2])


def test_letters_of_emnist_stand_upright_and_begin_at_class_0(tmp_path: Path) -> None:
    write_idx_set(tmp_path, EMNIST, first=1)
    data = build(tmp_path, "emnist_letters")
    assert torch.equal(data.val.inputs, torch.from_numpy(IMAGES[30:].transpose(0, 2, 1)[:, np.newaxis]))
    assert data.val.targets.tolist() == list(range(10))
    assert data.class_names == tuple("abcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize(
    ("variant", "count"), [("emnist_balanced", 47), ("emnist_bymerge", 47), ("emnist_byclass", 62)]
)
def test_the_classes_of_emnist_are_those_of_torchvision(variant: str, count: int) -> None:
    from torchvision.datasets import EMNIST as REFERENCE

    split = variant.partition("_")[2]
    assert tuple(archive.idx_tables()["classes"][variant]) == tuple(REFERENCE.classes_split_dict[split])
    assert len(tuple(archive.idx_tables()["classes"][variant])) == count


@pytest.mark.parametrize("num_present", [4, 1])
@pytest.mark.parametrize("zipped", [False, True])
def test_files_of_another_set_are_refused_by_name_and_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_present: int, zipped: bool
) -> None:
    """Also if some are missing, which a download would add."""
    files = write_idx_set(tmp_path / "MNIST" / "raw", zipped=zipped)
    for file in files:
        content = gzip.decompress(file.read_bytes()) if zipped else file.read_bytes()
        monkeypatch.setitem(archive.idx_tables()["sums"], hashlib.md5(content).hexdigest(), "FashionMNIST")
    for file in files[num_present:]:
        file.unlink()
    before, name = contents(tmp_path), re.escape(files[0].name)
    expected = {
        4: r"^data: .* is a file of FashionMNIST by its MD5 sum, not of MNIST; write data=fashion_mnist$",
        1: rf"^data\.download: .*nothing is downloaded beside {name}",
    }[num_present]
    with pytest.raises(ConfigError, match=expected):
        build(tmp_path, download=True)
    assert contents(tmp_path) == before


def test_a_damaged_file_is_not_written_over(tmp_path: Path) -> None:
    file = write_idx_set(tmp_path / "MNIST" / "raw")[0]
    file.write_bytes(file.read_bytes()[:50])
    before = contents(tmp_path)
    with pytest.raises(DataError, match=f"^{re.escape(str(file))} cannot be read .*; delete it"):
        build(tmp_path, download=True)
    assert contents(tmp_path) == before


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import MNIST

    monkeypatch.setattr(MNIST, "mirrors", [(tmp_path / "nowhere").as_uri() + "/"])
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".download.lock").write_text("a file of the user")
    with pytest.raises(ConfigError, match=r"^data\.download: MNIST is not in .* and its download failed"):
        build(tmp_path / "root", download=True)
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".download.lock"]
    assert (tmp_path / "root" / ".download.lock").read_text() == "a file of the user"


def test_missing_files_are_added_to_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import MNIST

    served = tmp_path / "served"
    write_idx_set(served, zipped=False)
    *present, missing = write_idx_set(tmp_path / "MNIST" / "raw")
    for file in present:
        monkeypatch.setitem(
            archive.idx_tables()["sums"], hashlib.md5(gzip.decompress(file.read_bytes())).hexdigest(), "MNIST"
        )
    missing.unlink()
    before = contents(tmp_path)
    monkeypatch.setattr(
        MNIST, "download", lambda part: shutil.copytree(served, part.raw_folder, dirs_exist_ok=True)
    )
    assert build(tmp_path, download=True).train.num_samples == 30
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 1


def test_other_files_train_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_idx_set(tmp_path)
    with caplog.at_level(logging.WARNING, "hydrant"):
        build(tmp_path)
    assert [record.getMessage().partition(" is not ")[2] for record in caplog.records] == [
        "the published file of MNIST: its MD5 sum differs"
    ] * 4


def test_the_files_of_a_package_are_read_if_the_root_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root, packaged = tmp_path / "root", tmp_path / "packaged"
    monkeypatch.setattr(archive, "_PACKAGED", {"fashion_mnist": (packaged,)})
    write_idx_set(packaged, zipped=True)
    with caplog.at_level(logging.INFO, logger="hydrant"):
        data = build(root, "fashion_mnist", download=True)
    assert data.train.num_samples == 30
    assert f"is read from {packaged}, because data.root has no file of it" in caplog.text
    with pytest.raises(ConfigError, match=rf"^data\.root: KMNIST is not in {root}/KMNIST/raw "):
        build(root, "kmnist")
    _, *others = write_idx_set(root)
    for file in others:
        file.unlink()
    with pytest.raises(ConfigError, match=rf"^data\.root: FashionMNIST is not in {root} \(missing: "):
        build(root, "fashion_mnist")


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the data: apt-get install dataset-fashion-mnist")
def test_fashion_mnist_of_debian_is_known(caplog: pytest.LogCaptureFixture) -> None:
    data = build(DEBIAN, "fashion_mnist")
    assert "MD5" not in caplog.text
    assert data.train.targets[:5].tolist() == [9, 0, 0, 3, 0]  # an ankle boot first, as in every other copy
    assert [round(value, 4) for values in statistics(data.train.inputs) for value in values] == [0.286, 0.353]
    message = r"FashionMNIST by its MD5 sum, not of MNIST; write data=fashion_mnist"
    with pytest.raises(ConfigError, match=message):
        build(DEBIAN)


def test_the_data_sets_of_torchvision_train_with_and_without_a_transform(train: Train, workdir: Path) -> None:
    write_idx_set(workdir / "FashionMNIST" / "raw", zipped=False)
    words = ["data=dataset", "allow_targets=[torchvision]", "data.input_shape=[1,28,28]", "data.num_classes=10",
             "duration=2", "global_batch_size=8", "data.num_workers=0", "tracker=local",
             "+data.val.train=false"]  # fmt: skip
    transforms = []
    for split in ("train", "val"):
        words += [f"data.{split}._target_=torchvision.datasets.FashionMNIST", f"+data.{split}.root=."]
        transforms += [f"+data.{split}.transform._target_=torchvision.transforms.ToTensor"]
    plain, transformed = train(*words, name="plain"), train(*words, *transforms, name="transformed")
    assert rows(plain)[-1]["val/loss"] == rows(transformed)[-1]["val/loss"]
