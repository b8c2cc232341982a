"""Samples in tensor files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hydrant.commands.eject.program.data_images import normalize
from hydrant.commands.eject.program.data_samples import Samples, first_of_test, on_device
from hydrant.commands.eject.program.settings import (
    IS_NPZ,
    LIMITS_TRAIN,
    LIMITS_VAL,
    NORMALIZES_ONCE,
    NUM_SAMPLES,
    NUM_VAL_SAMPLES,
    TEST,
    TRAIN,
    VAL,
)


def load_tensors() -> tuple[Samples, Samples]:
    """Return samples to train on and to evaluate on: tensors in files."""
    train, val = read_tensors(TRAIN), read_tensors(VAL)
    if LIMITS_TRAIN:
        train = train[0][:NUM_SAMPLES], train[1][:NUM_SAMPLES]
    if LIMITS_VAL:
        val = val[0][:NUM_VAL_SAMPLES], val[1][:NUM_VAL_SAMPLES]
    train, val = on_device(train), on_device(val)
    if NORMALIZES_ONCE:
        return (normalize(train[0]), train[1]), (normalize(val[0]), val[1])
    return train, val


def load_tensors_test() -> Samples:
    """Return the samples to test on."""
    if NORMALIZES_ONCE:
        inputs, targets = first_of_test(read_tensors(TEST))
        return normalize(inputs), targets
    return first_of_test(read_tensors(TEST))


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
