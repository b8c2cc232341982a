"""Evaluation."""

# The branches of a program are decided alike.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.commands.eject.program.data_images import normalize
from hydrant.commands.eject.program.metrics import means
from hydrant.commands.eject.program.parts import (
    ValidationSamples,
    forward,
    loss_and_metrics,
    make_metrics,
    num_targets,
    predictions,
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
    MEASURES,
    NORMALIZES,
    NUM_RANKS,
    NUM_TEST_SAMPLES,
    NUM_VAL_SAMPLES,
    RANK,
    RANKED,
    READS,
    RUNS_COMPILED,
    SUMS,
    TESTS,
)


@torch.no_grad()
def evaluate(model: nn.Module, samples: ValidationSamples, prefix: str) -> dict[str, float]:
    """Return the means of the metrics over all samples."""
    measured = list[tuple[int, Tensor]]()
    if READS and TESTS:
        num_samples = NUM_TEST_SAMPLES if prefix.startswith("test") else NUM_VAL_SAMPLES
    if SUMS:
        sums = torch.zeros((), device=DEVICE)
    if MEASURES:
        others = make_metrics()
    model.eval()
    if RUNS_COMPILED:
        torch.compiler.set_stance("force_eager")  # other batch sizes would need other graphs
    for inputs, targets in (
        (
            read_batch(samples, chosen)
            for chosen in torch.arange(NUM_VAL_SAMPLES).split(EVAL_BATCH_SIZE)[RANK::NUM_RANKS]
        )
        if READS and RANKED
        else (read_batch(samples, chosen) for chosen in torch.arange(num_samples).split(EVAL_BATCH_SIZE))
        if READS and TESTS
        else (read_batch(samples, chosen) for chosen in torch.arange(NUM_VAL_SAMPLES).split(EVAL_BATCH_SIZE))
        if READS
        else samples
        if LOADS
        else zip(*(part.split(EVAL_BATCH_SIZE)[RANK::NUM_RANKS] for part in samples), strict=True)
        if RANKED
        else zip(*(part.split(EVAL_BATCH_SIZE) for part in samples), strict=True)
    ):
        if LOADS:
            inputs, targets = to_device(inputs, targets)
        if NORMALIZES:
            inputs = normalize(inputs)
        with torch.autocast(DEVICE.type, AUTOCAST) if AUTOCAST is not None else nullcontext():
            if SUMS or MEASURES:
                outputs = forward()
                measured.append((num_targets(), loss_and_metrics(outputs, targets)[1]))
            else:
                measured.append((num_targets(), loss_and_metrics(forward(), targets)[1]))
        if SUMS:
            sums = sums + sums_of(outputs, targets)
        if MEASURES:
            for metric in others.values():
                metric.update(predictions(), targets)
    if SUMS and RANKED:
        dist.all_reduce(sums)
    model.train()
    if RUNS_COMPILED:
        torch.compiler.set_stance("default")
    if SUMS:
        return means(measured, prefix) | {
            f"{prefix}/{name}": value for name, value in values_of(sums).items()
        }
    if MEASURES:
        values = {f"{prefix}/{name}": float(metric.compute()) for name, metric in others.items()}
        return means(measured, prefix) | values
    return means(measured, prefix)
