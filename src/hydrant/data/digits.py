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
from hydrant.data.in_memory import Augment, InMemorySource
from hydrant.errors import ConfigError


def digits(
    *,
    input_shape: Sequence[int] = (1, 8, 8),
    num_classes: int = 10,
    val_ratio: float = 0.2,
    split_seed: int = 0,
    mean: Sequence[float] = (0.3053,),
    std: Sequence[float] = (0.3760,),
    augment: Augment | None = None,
) -> Data:
    """Return "Optical recognition of handwritten digits" (Alpaydin & Kaynak, UCI, 1998), as in `sklearn.datasets`.

    The validation part has the ratio `val_ratio` of each class. The split depends only on `split_seed`, so that
    replicates with other seeds are evaluated on the same samples. Pixels are scaled from 0..16 to 0..1, and then
    normalized by `mean` and `std`.
    """
    if not 0 < val_ratio < 1:
        raise ConfigError("data.val_ratio", f"{val_ratio} is not between 0 and 1")
    check_normalization(mean, std, num_channels=1)
    table = _table()
    inputs, targets = table[:, :-1].float().view(-1, 1, 8, 8) / 16, table[:, -1]
    train, val = stratified(targets.numpy(), val_ratio, split_seed)

    def part(indices: np.ndarray, augment: Augment | None) -> InMemorySource:
        chosen: Tensor = torch.from_numpy(np.sort(indices))
        return InMemorySource(inputs[chosen], targets[chosen], mean, std, augment)

    data = Data(part(train, augment), part(val, None), (1, 8, 8), 10)
    return check_shapes(data, input_shape, num_classes)


def _table() -> Tensor:
    """Return 64 pixels and the class of each image, (1797, 65)."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None  # a dependency of Hydrant
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))


def stratified(labels: np.ndarray, val_ratio: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the training and validation samples, split like `train_test_split(stratify=labels)`.

    Raises:
        ConfigError: a part is smaller than the number of classes.
    """
    sizes, rng = np.bincount(labels), np.random.RandomState(seed)
    num_val = int(np.ceil(val_ratio * len(labels)))
    if min(num_val, len(labels) - num_val) < len(sizes):
        raise ConfigError("data.val_ratio", f"{val_ratio} leaves a class without samples")
    train_counts = _counts_per_class(sizes, len(labels) - num_val, rng)
    val_counts = _counts_per_class(sizes - train_counts, num_val, rng)
    train, val = list[np.ndarray](), list[np.ndarray]()
    for label, (num_first, num_second) in enumerate(zip(train_counts, val_counts, strict=True)):
        shuffled = np.flatnonzero(labels == label)[rng.permutation(sizes[label])]
        train.append(shuffled[:num_first])
        val.append(shuffled[num_first : num_first + num_second])
    return np.concatenate(train), np.concatenate(val)


def _counts_per_class(sizes: np.ndarray, total: int, rng: np.random.RandomState) -> np.ndarray:
    """Split `total` in proportion to the sizes: round down, then add 1 to the largest remainders; ties are random."""
    exact = sizes / sizes.sum() * total
    shares = np.floor(exact)
    remainders, missing = exact - shares, int(total - shares.sum())
    for remainder in np.unique(remainders)[::-1]:
        if not missing:
            break
        (tied,) = np.nonzero(remainders == remainder)
        chosen = rng.choice(tied, size=min(len(tied), missing), replace=False)
        shares[chosen] += 1
        missing -= len(chosen)
    return shares.astype(int)
