"""MNIST and CIFAR, from files in the published formats that the fixture `published` writes."""

import functools
import gzip
import hashlib
import http.server
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hydrant.clock import Steps
from hydrant.data import ShiftFlip, StreamSpec
from hydrant.errors import ConfigError, DataError

SPEC = StreamSpec(
    0, batch_sizes=Steps.constant(6), micro_batch_size=6, rank=0, world_size=1, device=torch.device("cpu")
)


@pytest.mark.parametrize("download", [False, True])  # existing files are not downloaded
def test_pixels_and_labels_are_those_of_the_files(published: Any, tmp_path: Path, download: bool) -> None:
    data = published.build(tmp_path / "data", download=download)
    assert (data.input_shape, data.num_classes) == (published.shape, published.num_classes)
    for split, source in (("train", data.train), ("val", data.val)):
        images, labels = published.pixels(split)
        (batch,) = source.batches(SPEC, 1000)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (source.mean, source.std))
        torch.testing.assert_close(batch.inputs * std + mean, torch.from_numpy(images) / 255)
        assert batch.targets.tolist() == labels.tolist()


def test_pixels_may_be_left_unnormalized(published: Any, tmp_path: Path) -> None:
    channels = published.shape[0]
    data = published.build(tmp_path / "data", mean=[0] * channels, std=[1] * channels)
    (batch,) = data.val.batches(SPEC, 1000)
    torch.testing.assert_close(batch.inputs, torch.from_numpy(published.pixels("val")[0]) / 255)


@pytest.mark.parametrize("key", ["mean", "std"])
def test_a_wrong_normalization_is_rejected(published: Any, tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.{key}: "):
        published.build(tmp_path / "data", **{key: [0.5, 0.5]})


def test_only_training_is_augmented(published: Any, tmp_path: Path) -> None:
    plain, shifted = (
        published.build(tmp_path / "data", augment=augment) for augment in (None, ShiftFlip(2, flip=True))
    )
    one, other = (next(iter(data.train.stream(SPEC).micro_batches(0))) for data in (plain, shifted))
    assert torch.equal(one.targets, other.targets)
    assert not torch.equal(one.inputs, other.inputs)
    (one,), (other,) = (data.val.batches(SPEC, 1000) for data in (plain, shifted))
    assert torch.equal(one.inputs, other.inputs)


def test_missing_files_are_named_with_their_folder_and_the_remedy(published: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / published.folder / published.files[0]).unlink()
    place = re.escape(str(tmp_path / "data" / published.folder))
    holds = published.folder if published.name != "mnist" else f"these files or {published.folder}"
    remedy = rf"set data\.root to the folder that holds {holds}, or data\.download=true"
    message = rf"^data\.root: .* not in {place} \(missing: {published.files[0]}\); {remedy}$"
    with pytest.raises(ConfigError, match=message):
        published.build(tmp_path / "data")
    with pytest.raises(ConfigError, match=rf"^data\.root: .*{published.files[-1]}"):
        published.build(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_failed_download_reports_the_cause(published: Any, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    place, why = re.escape(str(root / published.folder)), r"its download failed: .*nowhere.*"
    message = rf"^data\.download: .* not in {place} .* and {why}Copy the files there, or"
    with pytest.raises(ConfigError, match=message):
        published.build(root, download=True)


def test_a_root_that_cannot_be_created_is_reported(published: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^data\.download: .*Not a directory"):
        published.build(tmp_path / "file" / "data", download=True)


@pytest.mark.parametrize("file_idx", [0, 1, -2])
def test_a_damaged_file_is_named(published: Any, tmp_path: Path, file_idx: int) -> None:
    path = tmp_path / "data" / published.folder / published.files[file_idx]
    path.write_bytes(path.read_bytes()[:-3])
    for download in (False, True):
        with pytest.raises(DataError, match=f"^{re.escape(str(path))} cannot be read .*; delete it"):
            published.build(tmp_path / "data", download=download)


@pytest.mark.parametrize("published", ["mnist"], indirect=True)
def test_labels_that_do_not_fit_are_rejected(published: Any, tmp_path: Path) -> None:
    path = tmp_path / "data" / published.folder / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x0a")  # 10 is no digit
    with pytest.raises(DataError, match="labels do not fit"):
        published.build(tmp_path / "data")


def test_configured_shapes_are_checked(published: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.num_classes: 7 .* have {published.num_classes};"):
        published.build(tmp_path / "data", num_classes=7)
    with pytest.raises(ConfigError, match=r"^data\.input_shape: \[5, 5\] "):
        published.build(tmp_path / "data", input_shape=[5, 5])


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder on this machine; yield it and its address."""
    folder = tmp_path / "server"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()


def test_a_download_gives_the_same_data(
    published: Any, server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = server
    written = tmp_path / "data" / published.folder
    dataset = published.dataset
    if published.name == "mnist":
        for name in published.files:
            (folder / f"{name}.gz").write_bytes(gzip.compress((written / name).read_bytes()))
        monkeypatch.setattr(dataset, "mirrors", [address])
        monkeypatch.setattr(dataset, "resources", [(p.name, md5(p)) for p in sorted(folder.iterdir())])
    else:
        with tarfile.open(folder / "archive.tar.gz", mode="w:gz") as archive:
            archive.add(written, arcname=published.folder)
        monkeypatch.setattr(dataset, "url", address + "archive.tar.gz")
        monkeypatch.setattr(dataset, "tgz_md5", md5(folder / "archive.tar.gz"))
    (one,), (other,) = (
        published.build(tmp_path / root, download=root == "new").val.batches(SPEC, 1000)
        for root in ("new", "data")
    )
    assert torch.equal(one.inputs, other.inputs)


def test_a_validation_set_of_training_images_leaves_the_published_one_for_the_test(
    published: Any, tmp_path: Path
) -> None:
    plain, cut = (published.build(tmp_path / "data", val_ratio=r, augment=ShiftFlip(1)) for r in (0.0, 0.5))
    assert plain.test is None
    count = published.num_classes
    assert [part.num_samples for part in (cut.train, cut.val, cut.test)] == [count, count, count]
    assert sorted(cut.val.labels) == list(range(count)), "the same ratio of each class"
    (batch,), (expected,) = (part.batches(SPEC, 1000) for part in (cut.test, plain.val))
    assert torch.equal(batch.inputs, expected.inputs)
    images = torch.cat([part.inputs for part in (cut.train, cut.val)])
    assert torch.equal(images.flatten(1).unique(dim=0), plain.train.inputs.flatten(1).unique(dim=0))
    assert len(cut.class_names) == count
