"""Evaluation."""

# The branches of a program are decided alike.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import torch
from torch import nn

from hydrant.commands.eject.program.data_images import normalize
from hydrant.commands.eject.program.metrics import Measured, means
from hydrant.commands.eject.program.parts import (
    ValidationSamples,
    forward,
    loss_and_metrics,
    num_targets,
    read_batch,
    sums_of,
    to_device,
    values_of,
)
from hydrant.commands.eject.program.settings import (
    AUTOCAST,
    DEVICE,
    EVAL_BATCH_SIZE,
    LOADS,
    NORMALIZES,
    NUM_VAL_SAMPLES,
    READS,
    SUMS,
)


@torch.no_grad()
def evaluate(model: nn.Module, samples: ValidationSamples, prefix: str) -> dict[str, float]:
    """Return the means of the metrics over all samples."""
    measured: Measured = []
    if SUMS:
        sums = torch.zeros((), device=DEVICE)
    model.eval()
    for inputs, targets in (
        (read_batch(samples, chosen) for chosen in torch.arange(NUM_VAL_SAMPLES).split(EVAL_BATCH_SIZE))
        if READS
        else samples
        if LOADS
        else zip(*(part.split(EVAL_BATCH_SIZE) for part in samples), strict=True)
    ):
        if LOADS:
            inputs, targets = to_device(inputs, targets)
        if NORMALIZES:
            inputs = normalize(inputs)
        if SUMS:
            if AUTOCAST is not None:
                with torch.autocast(DEVICE.type, AUTOCAST):
                    outputs = forward()
                    _, metrics = loss_and_metrics(outputs, targets)
            else:
                outputs = forward()
                _, metrics = loss_and_metrics(outputs, targets)
            sums = sums + sums_of(outputs, targets)
        elif AUTOCAST is not None:
            with torch.autocast(DEVICE.type, AUTOCAST):
                _, metrics = loss_and_metrics(forward(), targets)
        else:
            _, metrics = loss_and_metrics(forward(), targets)
        measured.append((num_targets(), metrics))
    model.train()
    if SUMS:
        return means(measured, prefix) | {
            f"{prefix}/{name}": value for name, value in values_of(sums).items()
        }
    return means(measured, prefix)
