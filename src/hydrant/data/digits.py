"""The handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, without a download.

The file is read and split like scikit-learn does, but without importing it, which takes longer than a small run.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hydrant.data.base import Data, check_normalization, check_shapes
from hydrant.data.in_memory import Augment, InMemorySource, tensor_reader
from hydrant.data.stratified import cut_val_and_test


def digits(
    *,
    input_shape: Sequence[int] = (1, 8, 8),
    num_classes: int = 10,
    val_ratio: float = 0.2,
    test_ratio: float = 0.0,
    split_seed: int = 0,
    mean: Sequence[float] = (0.3053,),
    std: Sequence[float] = (0.3760,),
    augment: Augment | None = None,
) -> Data:
    """Return "Optical recognition of handwritten digits" (Alpaydin & Kaynak, UCI, 1998), as in `sklearn.datasets`.

    The validation set has the ratio `val_ratio` of each class, and the test set the ratio `test_ratio`. Which samples
    these are depends only on `split_seed`, so that replicates with other seeds are evaluated on the same samples.
    Pixels are scaled from 0..16 to 0..1, and then normalized by `mean` and `std`.
    """
    check_normalization(mean, std, num_channels=1)
    table = _table()
    inputs, targets = table[:, :-1].float().view(-1, 1, 8, 8) / 16, table[:, -1]
    train, val, test = cut_val_and_test(targets.numpy(), val_ratio, test_ratio, split_seed)

    def part(indices: np.ndarray, augment: Augment | None) -> InMemorySource:
        chosen = torch.from_numpy(indices)
        return InMemorySource(inputs[chosen], targets[chosen], mean, std, augment)

    data = Data(
        part(train, augment),
        part(val, None),
        (1, 8, 8),
        10,
        test=part(test, None) if len(test) else None,
        reader=tensor_reader(mean, std),
        class_names=tuple(map(str, range(10))),
    )
    return check_shapes(data, input_shape, num_classes)


def _table() -> Tensor:
    """Return 64 pixels and the class of each image, (1797, 65)."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None  # a dependency of Hydrant
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))
