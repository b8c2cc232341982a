"""Means of metrics."""

from __future__ import annotations

import itertools
from operator import itemgetter

import torch
from torch import Tensor

from hydrant.commands.eject.program.settings import ADDS_BATCHES, DEVICE, METRICS

Measured = list[tuple[int, Tensor]]  # the size and the METRICS of batches


def means(measured: Measured, prefix: str) -> dict[str, float]:
    """Return the mean of each metric over the samples of all batches, named as `train/loss`; waits for the device."""
    sums = torch.zeros(len(METRICS), dtype=torch.float64, device=DEVICE)
    if ADDS_BATCHES:
        for size, metrics in measured:
            sums += metrics * size
    else:
        for size, batches in itertools.groupby(measured, key=itemgetter(0)):
            for rows in torch.stack([metrics for _, metrics in batches]).split(64):
                sums.add_(rows.sum(0), alpha=size)
    values = (sums / sum(size for size, _ in measured)).tolist()
    return {f"{prefix}/{name}": value for name, value in zip(METRICS, values, strict=True)}
