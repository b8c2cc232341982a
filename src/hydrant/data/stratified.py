"""Cut a part from labelled samples that has the same ratio of each class."""

from __future__ import annotations

import numpy as np

from hydrant.checks import check_number
from hydrant.errors import ConfigError


def cut_part(labels: np.ndarray, ratio: float, seed: int, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the other samples and those of a part, which has the ratio `ratio` of each class.

    The part depends only on the arguments. With a ratio of 0 it is empty.

    Args:
        labels: the class of each sample, from 0; shape (N,).
        ratio: at least 0 and below 1.
        seed: of the choice.
        key: names the ratio in errors.

    Raises:
        ConfigError: the ratio is out of range, or a part is smaller than the number of classes.
    """
    check_number(key, ratio, least=0, below=1)
    if ratio == 0:
        return np.arange(len(labels)), np.arange(0)
    rest, part = _stratified(labels, ratio, seed, key)
    return np.sort(rest), np.sort(part)


def cut_val_and_test(
    labels: np.ndarray, val_ratio: float, test_ratio: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sorted indices of the samples for training, validation and test, with the ratios of each class.

    The test samples depend on `test_ratio` and `seed` only.

    Raises:
        ConfigError: a ratio is out of range, or a part is smaller than the number of classes.
    """
    rest, test = cut_part(labels, test_ratio, seed, "data.test_ratio")
    if val_ratio + test_ratio >= 1:
        message = f"{val_ratio}, with test_ratio={test_ratio}, leaves no training samples; give less"
        raise ConfigError("data.val_ratio", message)
    train, val = cut_part(labels[rest], val_ratio / (1 - test_ratio), seed, "data.val_ratio")
    return rest[train], rest[val], test


def _stratified(labels: np.ndarray, ratio: float, seed: int, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the rest and the part, split like scikit-learn's `train_test_split(stratify=labels)`."""
    sizes, rng = np.bincount(labels), np.random.RandomState(seed)
    num_part = int(np.ceil(ratio * len(labels)))
    if min(num_part, len(labels) - num_part) < len(sizes):
        raise ConfigError(key, f"{ratio:g} leaves a class without samples")
    rest_counts = _counts_per_class(sizes, len(labels) - num_part, rng)
    part_counts = _counts_per_class(sizes - rest_counts, num_part, rng)
    rest, part = list[np.ndarray](), list[np.ndarray]()
    for label, (num_first, num_second) in enumerate(zip(rest_counts, part_counts, strict=True)):
        shuffled = np.flatnonzero(labels == label)[rng.permutation(sizes[label])]
        rest.append(shuffled[:num_first])
        part.append(shuffled[num_first : num_first + num_second])
    return np.concatenate(rest), np.concatenate(part)


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
