"""Folds of a training set, for cross-validation."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from hydrant import seeding
from hydrant.data.base import Data
from hydrant.data.labels import labels_of
from hydrant.errors import ConfigError


def fold_numbers(num_samples: int, folds: int, seed: int, labels: np.ndarray | None) -> np.ndarray:
    """Return the fold of each sample: int64, shape (num_samples,).

    The samples are shuffled, sorted by their labels, and dealt out to the folds in turn. So the sizes of two folds
    differ by 1 at most, and so do the numbers of their samples of each class.

    >>> fold_numbers(6, 3, seed=0, labels=np.array([0, 0, 0, 1, 1, 1])).tolist()
    [0, 2, 1, 2, 0, 1]
    """
    generator = torch.Generator().manual_seed(seeding.hash_of(seed, seeding.FOLDS))
    order = torch.randperm(num_samples, generator=generator).numpy()
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    numbers = np.empty(num_samples, dtype=np.int64)
    numbers[order] = np.arange(num_samples) % folds
    return numbers


def cut_fold(data: Data, folds: int, fold: int, seed: int, limit: int | None = None) -> Data:
    """Return data whose validation set is one fold of the training set, and whose training set is the rest.

    Folds do not depend on the seed of a run: they are a function of `seed`, the number of samples and their labels. The
    validation set of `data` is the test set, unless there is one.

    Args:
        data: all data.
        folds: how many there are.
        fold: which one validates, from 0.
        seed: of the division.
        limit: the most training samples that prepare the data, the first ones; None: all.

    Raises:
        ConfigError: there are fewer samples than folds, or the samples cannot be read by their index.
    """
    train = data.train
    if train.num_samples < folds:
        message = f"{folds} folds of {train.num_samples} training samples leave some empty; give fewer"
        raise ConfigError("folds", message)
    is_val = fold_numbers(train.num_samples, folds, seed, labels_of(train)) == fold
    training, validation = np.flatnonzero(~is_val), np.flatnonzero(is_val)
    if data.with_statistics_of is not None:
        data = data.with_statistics_of(training[:limit])
    test = data.val if data.test is None and data.val.num_samples else data.test
    return dataclasses.replace(
        data, train=data.train.subset(training), val=data.train.subset(validation), test=test
    )
