"""Samples that stay on the device, from files and from functions of the user."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrant.commands.eject.program.parts import make_data
from hydrant.commands.eject.program.settings import *

Samples = tuple[Tensor, Tensor]  # inputs and targets, one entry for each sample


def on_device(samples: Samples) -> Samples:
    """Return samples on the device."""
    if NORMALIZES_ONCE:
        return normalize(samples[0].to(DEVICE)), samples[1].to(DEVICE)
    return samples[0].to(DEVICE), samples[1].to(DEVICE)


def placed(train: Samples, val: Samples) -> tuple[Samples, Samples]:
    """Return the samples to train on and to evaluate on, on the device."""
    if LIMITS_TRAIN:
        train = train[0][:NUM_SAMPLES], train[1][:NUM_SAMPLES]
    if LIMITS_VAL:
        val = val[0][:NUM_VAL_SAMPLES], val[1][:NUM_VAL_SAMPLES]
    return on_device(train), on_device(val)


def first_of_test(samples: Samples) -> Samples:
    """Return the samples to test on, on the device."""
    if LIMITS_TEST:
        samples = samples[0][:NUM_TEST_SAMPLES], samples[1][:NUM_TEST_SAMPLES]
    return on_device(samples)


def normalize(images: Tensor) -> Tensor:
    """Return images minus the mean of each channel, divided by its standard deviation."""
    if IS_BYTES:
        images = images.float() / 255
    if IS_IMAGE:
        mean, std = (torch.tensor(values, device=DEVICE).view(-1, 1, 1) for values in (MEAN, STD))
    else:  # the second side counts the channels, if there are several
        sides = [1] * (images.ndim - 2)
        mean, std = (torch.tensor(values, device=images.device).view(-1, *sides) for values in (MEAN, STD))
    return (images - mean) / std


def read_tensors(file: str) -> Samples:
    """Return the inputs and the targets in a file; doubles as float32."""
    if IS_NPZ:
        arrays = np.load(file)
        content: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in ("inputs", "targets")}
    else:
        content = torch.load(file, map_location="cpu", weights_only=True)
    inputs, targets = (
        tensor.float() if tensor.dtype == torch.float64 else tensor
        for tensor in (content["inputs"], content["targets"])
    )
    return inputs, targets


class InMemorySource:
    """Samples in tensors."""

    def __init__(self, inputs: Tensor, targets: Tensor, *_: Any, **__: Any) -> None:
        self.samples = inputs, targets


class Data:
    """The samples to train on and to evaluate on."""

    def __init__(self, train: InMemorySource, val: InMemorySource, *_: Any, **others: Any) -> None:
        self.train, self.val = train, val
        if TESTS:
            self.test = others["test"]


def load_own() -> tuple[Samples, Samples]:
    """Return samples to train on and to evaluate on."""
    data = make_data()
    return placed(data.train.samples, data.val.samples)


def load_own_test() -> Samples:
    """Return the samples to test on."""
    return first_of_test(make_data().test.samples)
