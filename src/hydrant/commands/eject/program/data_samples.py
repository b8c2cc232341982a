"""Samples that stay on the device."""

from __future__ import annotations

from torch import Tensor

from hydrant.commands.eject.program.settings import DEVICE

Samples = tuple[Tensor, Tensor]  # inputs and targets, one entry for each sample


def on_device(samples: Samples) -> Samples:
    """Return samples on the device."""
    return samples[0].to(DEVICE), samples[1].to(DEVICE)
