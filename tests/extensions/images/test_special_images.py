"""Pipes and devices among images are refused at once: opening one would wait for its writer."""

import os
from pathlib import Path
from typing import Any

import pytest
from data_files import CLASSES
from marks import needing
from sources import spec
from special_files import ends, options

from hydrant.errors import HydrantError
from hydrant.extensions.images import ImageAugment, image_folder

__all__ = ["ends"]


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


def test_a_device_is_no_image_to_predict(image_root: Path) -> None:
    (image_root / "train" / CLASSES[0] / "device.jpg").symlink_to("/dev/zero")
    data = of_images(image_root, "pillow")
    assert data.reader.files is not None
    with pytest.raises(HydrantError, match=r"it is a pipe, a socket or a device"):
        list(data.reader.files([image_root / "train" / CLASSES[0] / "device.jpg"]).batches(spec(), 1))
