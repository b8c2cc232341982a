"""Samples that a function of the user returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hydrant.commands.eject.program.data_images import normalize
from hydrant.commands.eject.program.data_samples import Samples, first_of_test, on_device
from hydrant.commands.eject.program.parts import make_data
from hydrant.commands.eject.program.settings import (
    LIMITS_TRAIN,
    LIMITS_VAL,
    NORMALIZES_ONCE,
    NUM_SAMPLES,
    NUM_VAL_SAMPLES,
    TESTS,
)


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
    train, val = on_device(data.train.samples), on_device(data.val.samples)
    if LIMITS_TRAIN:
        train = train[0][:NUM_SAMPLES], train[1][:NUM_SAMPLES]
    if LIMITS_VAL:
        val = val[0][:NUM_VAL_SAMPLES], val[1][:NUM_VAL_SAMPLES]
    if NORMALIZES_ONCE:
        return (normalize(train[0]), train[1]), (normalize(val[0]), val[1])
    return train, val


def load_own_test() -> Samples:
    """Return the samples to test on."""
    test = make_data().test
    if NORMALIZES_ONCE:
        inputs, targets = first_of_test(test.samples)
        return normalize(inputs), targets
    return first_of_test(test.samples)
