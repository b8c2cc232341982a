"""Evaluation."""

from __future__ import annotations

import torch
from torch import nn

from hydrant.commands.eject.program.data import Samples, normalize
from hydrant.commands.eject.program.loss import loss_and_metrics
from hydrant.commands.eject.program.metrics import Measured, means
from hydrant.commands.eject.program.settings import AUTOCAST, DEVICE, EVAL_BATCH_SIZE, NORMALIZES


@torch.no_grad()
def evaluate(model: nn.Module, samples: Samples, prefix: str) -> dict[str, float]:
    """Return the means of the metrics over all samples."""
    measured: Measured = []
    model.eval()
    for inputs, targets in zip(*(part.split(EVAL_BATCH_SIZE) for part in samples), strict=True):
        if NORMALIZES:
            inputs = normalize(inputs)
        if AUTOCAST is not None:
            with torch.autocast(DEVICE.type, AUTOCAST):
                _, metrics = loss_and_metrics(model(inputs), targets)
        else:
            _, metrics = loss_and_metrics(model(inputs), targets)
        measured.append((len(targets), metrics))
    model.train()
    return means(measured, prefix)
