"""Means of metrics."""

from __future__ import annotations

from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from hydrant.commands.eject.program.settings import ADDS_BATCHES, DEVICE, METRICS, RANKED


def means(measured: list[tuple[int, Tensor]], prefix: str) -> dict[str, float]:
    """Return the mean of each metric over batches, which are pairs of a size and METRICS; named as `train/loss`."""
    sums = torch.zeros(len(METRICS), dtype=torch.float64, device=DEVICE)
    if ADDS_BATCHES:
        for size, metrics in measured:
            sums += metrics * size
    else:
        # As in `hydrant train`, up to 64 batches of one size are added up first: the order decides the rounding.
        for size, batches in groupby(measured, key=lambda batch: batch[0]):
            for rows in torch.stack([metrics for _, metrics in batches]).split(64):
                sums.add_(rows.sum(0), alpha=size)
    if RANKED:
        num_targets = sums.new_tensor([float(sum(size for size, _ in measured))])
        sums = torch.cat([sums, num_targets])
        dist.all_reduce(sums)  # over all ranks
        values = (sums[:-1] / sums[-1]).tolist()
    else:
        values = (sums / sum(size for size, _ in measured)).tolist()
    return {f"{prefix}/{name}": value for name, value in zip(METRICS, values, strict=True)}
