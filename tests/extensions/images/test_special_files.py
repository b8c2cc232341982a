"""Pipes among the files of a user are refused at once: opening one would wait for its writer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from data_files import CLASSES, image_root
from marks import needing
from sources import spec
from training_runs import DIGITS, Train

from hydrant import cli
from hydrant.config.groups import option_path
from hydrant.data import memmap, tensors
from hydrant.errors import HydrantError
from hydrant.extensions.images import ImageAugment, image_folder
from hydrant.extensions.language import tokens
from hydrant.extensions.tables import csv

__all__ = ["image_root"]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """Let a test that waits for a pipe fail."""

    def stop(*_: Any) -> None:
        raise TimeoutError("it waits for a pipe")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def options(name: str, **changes: Any) -> dict[str, Any]:
    """Return the arguments of an option of `data`, without interpolations."""
    plain = yaml.safe_load(option_path("data", name).read_text())
    del plain["_target_"]
    return {
        key: None if isinstance(value, str) and "${" in value else value for key, value in plain.items()
    } | changes


def of_images(root: Path, decoder: str) -> Any:
    os.mkfifo(root / "train" / CLASSES[0] / "pipe.jpg")
    augment = ImageAugment(
        scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=0.0, color_jitter=None, auto_augment=None, re_prob=0.0,
        re_mode="const",
    )  # fmt: skip
    words = {"root": str(root), "decoder": decoder, "augment": augment, "num_classes": 3, "num_workers": 0}
    return image_folder(**options("image_folder", **words, input_shape=(3, 16, 16), interpolation="bilinear"))


@pytest.mark.parametrize("decoder", ["pillow", "pillow_draft", needing("simplejpeg", "simplejpeg")])
def test_a_pipe_among_images(image_root: Path, decoder: str) -> None:
    data = of_images(image_root, decoder)
    with pytest.raises(HydrantError, match=r"pipe\.jpg cannot be read: it is a pipe, a socket or a device"):
        list(data.train.batches(spec(), 30))


READERS: dict[str, Callable[[Path], Any]] = {
    "own.bin": lambda file: tokens(**options("tokens", root=str(file.parent), train=file.name, vocab_size=9)),
    "own.npy": lambda file: tokens(**options("tokens", root=str(file.parent), train=file.name, vocab_size=9)),
    "tokens.json": lambda file: tokens(
        **options("tokens", root=str(file.parent), train="t.bin", val="t.bin", dtype="uint16")
    ),
    "inputs.npy": lambda file: memmap(**options("memmap", train=str(file.parent), val=str(file.parent))),
    "points.npz": lambda file: tensors(**options("tensors", train=str(file), val=str(file))),
    "table.csv": lambda file: csv(**options("csv", train=str(file), val=str(file), target="x")),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_in_the_place_of_a_file_of_data(name: str, tmp_path: Path) -> None:
    np.arange(200, dtype="uint16").tofile(tmp_path / "t.bin")
    os.mkfifo(tmp_path / name)
    with pytest.raises(HydrantError, match=r"it is a pipe, a socket or a device|there is no file"):
        READERS[name](tmp_path / name)


def test_a_pipe_in_the_place_of_an_option(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "conf" / "model").mkdir(parents=True)
    os.mkfifo(workdir / "conf" / "model" / "piped.yaml")
    assert cli.main(["train", "model=piped", "tracker=local"]) == 2
    assert "piped" in capsys.readouterr().err


def test_a_pipe_in_a_checkpoint(workdir: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(*DIGITS, "duration=2")
    checkpoint = (run / "checkpoints" / "last").resolve()
    for name in ("manifest.json", "training.json"):
        saved = (checkpoint / name).read_bytes()
        (checkpoint / name).unlink()
        os.mkfifo(checkpoint / name)
        assert cli.main(["evaluate", str(run)]) != 0
        (checkpoint / name).unlink()
        (checkpoint / name).write_bytes(saved)
    assert cli.main(["evaluate", str(run)]) == 0


def test_a_device_is_no_image_to_predict(image_root: Path) -> None:
    (image_root / "train" / CLASSES[0] / "device.jpg").symlink_to("/dev/zero")
    data = of_images(image_root, "pillow")
    assert data.reader.files is not None
    with pytest.raises(HydrantError, match=r"it is a pipe, a socket or a device"):
        list(data.reader.files([image_root / "train" / CLASSES[0] / "device.jpg"]).batches(spec(), 1))
