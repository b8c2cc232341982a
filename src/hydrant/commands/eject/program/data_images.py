"""Images and signals that stay on the device."""

# scikit-learn has no types, and the branches of a program are decided alike.
# pyright: reportPossiblyUnboundVariable=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from sklearn.model_selection import train_test_split

from hydrant.commands.eject.program.data_samples import Samples, first_of_test, on_device, placed
from hydrant.commands.eject.program.settings import *
from hydrant.data.idx import read_idx
from hydrant.data.signals import make_signals


def load_digits() -> tuple[Samples, Samples]:
    """Return samples to train on and to evaluate on: the digits of scikit-learn, 8 x 8 pixels from 0 to 16."""
    if TESTS:
        inputs, targets = digits()
    else:
        pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
        inputs, targets = torch.tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels)
        if not NORMALIZES:
            inputs = (inputs - torch.tensor(MEAN)) / torch.tensor(STD)
        inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
    if CUTS_TEST or LIMITS_TRAIN or LIMITS_VAL:
        train, val = split(targets.cpu().numpy())
    else:
        how: Any = {"test_size": VAL_RATIO, "random_state": SPLIT_SEED, "stratify": labels}
        train, val = map(np.sort, train_test_split(range(len(labels)), **how))  # sorted, because it shuffles
    return (inputs[train], targets[train]), (inputs[val], targets[val])


def digits() -> Samples:
    """Return all digits and their classes."""
    pixels, labels = sklearn.datasets.load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    if not NORMALIZES:
        inputs = (inputs - torch.tensor(MEAN)) / torch.tensor(STD)
    return on_device((inputs, targets))


def load_digits_test() -> Samples:
    """Return the samples to test on."""
    inputs, targets = digits()
    test = cut_test(targets.cpu().numpy())[1]
    if LIMITS_TEST:
        test = test[:NUM_TEST_SAMPLES]
    return inputs[test], targets[test]


def load_mnist() -> tuple[Samples, Samples]:
    """Return samples to train on and to evaluate on."""
    return divide(read_samples(*FILES[:2]), read_samples(*FILES[2:]))


def read_samples(images: str, labels: str) -> Samples:
    """Return images (N, 1, H, W) and their classes, from IDX files."""
    pixels = read_idx(Path(images))
    if IS_TURNED:
        pixels = pixels.transpose(1, 2).contiguous()
    return pixels.unsqueeze(1), read_idx(Path(labels)).long() - FIRST_LABEL


def load_mnist1d() -> tuple[Samples, Samples]:
    """Return samples to train on and to evaluate on."""
    train, test = make_signals(NUM_SIGNALS, SAMPLES_SEED, shuffled=SHUFFLED)
    return divide(train, test)


def load_mnist1d_test() -> Samples:
    """Return the samples to test on."""
    return first_of_test(make_signals(NUM_SIGNALS, SAMPLES_SEED, shuffled=SHUFFLED)[1])


def load_cifar(kind: Any) -> tuple[Samples, Samples]:
    """Return samples to train on and to evaluate on."""
    train, val = (kind(ROOT, train=is_train) for is_train in (True, False))
    return divide(channels_first(train.data, train.targets), channels_first(val.data, val.targets))


def load_mnist_test() -> Samples:
    """Return the published test images."""
    return first_of_test(read_samples(*FILES[2:]))


def load_cifar_test(kind: Any) -> Samples:
    """Return the published test images."""
    test = kind(ROOT, train=False)
    return first_of_test(channels_first(test.data, test.targets))


def channels_first(images: np.ndarray, classes: list[int]) -> Samples:
    """Return images (N, H, W, 3) as (N, 3, H, W), with their classes."""
    return torch.tensor(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(classes)


def divide(train: Samples, val: Samples) -> tuple[Samples, Samples]:
    """Return the samples to train on and to evaluate on, on the device."""
    if CUTS_VAL:  # the published test images are for tests
        chosen, held_out = split(train[1].numpy())
        return on_device((train[0][chosen], train[1][chosen])), on_device(
            (train[0][held_out], train[1][held_out])
        )
    return placed(train, val)


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the samples to train on and to evaluate on, with the same ratio of each class."""
    if CUTS_TEST:  # the others are for tests
        chosen, val_ratio = cut_test(labels)[0], VAL_RATIO / (1 - TEST_RATIO)
    else:
        chosen, val_ratio = np.arange(len(labels)), VAL_RATIO
    parts = train_test_split(chosen, test_size=val_ratio, random_state=SPLIT_SEED, stratify=labels[chosen])
    train, val = map(np.sort, parts)  # sorted, because they are shuffled
    if LIMITS_TRAIN:
        train = train[:NUM_SAMPLES]
    if LIMITS_VAL:
        val = val[:NUM_VAL_SAMPLES]
    return train, val


def cut_test(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the other samples and of those to test on, with the same ratio of each class."""
    how: Any = {"test_size": TEST_RATIO, "random_state": SPLIT_SEED, "stratify": labels}
    others, test = map(np.sort, train_test_split(range(len(labels)), **how))  # sorted, because it shuffles
    return others, test
