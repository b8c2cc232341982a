"""Samples that stay on the device."""

from __future__ import annotations

from torch import Tensor

from hydrant.commands.eject.program.settings import DEVICE, LIMITS_TEST, NUM_TEST_SAMPLES

Samples = tuple[Tensor, Tensor]  # inputs and targets, one entry for each sample


def on_device(samples: Samples) -> Samples:
    """Return samples on the device."""
    return samples[0].to(DEVICE), samples[1].to(DEVICE)


def first_of_test(samples: Samples) -> Samples:
    """Return the samples to test on, on the device."""
    if LIMITS_TEST:
        samples = samples[0][:NUM_TEST_SAMPLES], samples[1][:NUM_TEST_SAMPLES]
    return on_device(samples)
