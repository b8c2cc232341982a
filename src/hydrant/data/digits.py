"""The handwritten digits that scikit-learn ships: 1,797 images of 8 x 8 pixels; needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrant.data.base import Data, check_stated
from hydrant.data.resident import Augment, ResidentSource
from hydrant.errors import ConfigError

PRELOAD = ("sklearn.datasets", "sklearn.model_selection")


def digits(
    *,
    input_shape: Sequence[int] = (1, 8, 8),
    num_classes: int = 10,
    val_ratio: float = 0.2,
    split_seed: int = 0,
    augment: Augment | None = None,
) -> Data:
    """Optical recognition of handwritten digits (Alpaydin & Kaynak, UCI, 1998), as in `sklearn.datasets`.

    `val_ratio` of each class is held out; the split depends on `split_seed` alone, so that replicates with
    other seeds are evaluated on the same samples. Pixels are scaled from 0..16 to 0..1.
    """
    if not 0 < val_ratio < 1:
        raise ConfigError("data.val_ratio", f"{val_ratio} is not between 0 and 1")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    try:
        split: Any = train_test_split(
            np.arange(len(labels)), test_size=val_ratio, random_state=split_seed, stratify=labels
        )
    except ValueError as error:  # too little on one side to hold each class
        raise ConfigError("data.val_ratio", f"{val_ratio} leaves a class without samples: {error}") from error
    train, val = split
    inputs = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    targets = torch.from_numpy(labels).long()

    def part(indices: np.ndarray, augment: Augment | None) -> ResidentSource:
        chosen: Tensor = torch.from_numpy(np.sort(indices))
        return ResidentSource(inputs[chosen], targets[chosen], mean=(0.3053,), std=(0.3760,), augment=augment)

    data = Data(part(train, augment), part(val, None), (1, 8, 8), 10)
    return check_stated(data, input_shape, num_classes)
