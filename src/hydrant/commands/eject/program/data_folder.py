"""Images in one folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from timm.data.transforms_factory import create_transform
from torchvision.datasets import ImageFolder

from hydrant.commands.eject.program.data_loading import Loader, TrainingBatches, loaders, test_loader
from hydrant.commands.eject.program.settings import (
    AUGMENTATION,
    CROP_PCT,
    IMAGES,
    ROOT,
    TEST_DIR,
    TRAIN_DIR,
    VAL_DIR,
)
from hydrant.data.pixels import open_rgb


def load_image_folder() -> tuple[TrainingBatches, Loader]:
    """Return the images to train on, changed at random, and those to evaluate on."""
    train_transform: Any = create_transform(**IMAGES, **AUGMENTATION, is_training=True)
    val_transform: Any = create_transform(**IMAGES, crop_pct=CROP_PCT, normalize=False)
    train = ImageFolder(Path(ROOT, TRAIN_DIR), train_transform, loader=open_rgb)
    return loaders(train, ImageFolder(Path(ROOT, VAL_DIR), val_transform, loader=open_rgb))


def load_image_folder_test() -> Loader:
    """Return the images to test on."""
    transform: Any = create_transform(**IMAGES, crop_pct=CROP_PCT, normalize=False)
    return test_loader(ImageFolder(Path(ROOT, TEST_DIR), transform, loader=open_rgb))
