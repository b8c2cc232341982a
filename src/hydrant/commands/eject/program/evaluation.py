"""Metrics and evaluation."""

# The branches of a program are decided alike.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from contextlib import nullcontext
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.commands.eject.program.data_samples import normalize
from hydrant.commands.eject.program.parts import (
    ValidationSamples,
    forward,
    load_test,
    loss_and_metrics,
    make_metrics,
    num_targets,
    predictions,
    read_batch,
    sums_of,
    to_device,
    values_of,
)
from hydrant.commands.eject.program.settings import *


@torch.no_grad()
def evaluate(model: nn.Module, samples: ValidationSamples, prefix: str) -> dict[str, float]:
    """Return the means of the metrics over all samples."""
    measured = list[tuple[int, Tensor]]()
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
        else (
            read_batch(samples, chosen)
            for chosen in torch.arange(
                NUM_TEST_SAMPLES if TESTS and prefix.startswith("test") else NUM_VAL_SAMPLES
            ).split(EVAL_BATCH_SIZE)
        )
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


def test_model(model: nn.Module, average: Any, num_updates: int) -> dict[str, float]:
    """Return the metrics of the test samples for the weights of the best checkpoint, if there is one."""
    if EVALS and SAVES:
        state = torch.load(FOLDER / "best.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        if AVERAGES:
            average.model.load_state_dict(state["average"])
        num_updates = state["num_updates"]
    samples = load_test()
    row = {"test/num_updates": num_updates, **evaluate(model, samples, "test")}
    if AVERAGES:
        row |= evaluate(average.model, samples, "test_ema")
    return row


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
        sums = torch.cat([sums, sums.new_tensor([float(sum(size for size, _ in measured))])])
        dist.all_reduce(sums)  # over all ranks
        *totals, count = sums.tolist()
    else:
        totals, count = sums.tolist(), float(sum(size for size, _ in measured))
    # Divided on the host: CUDA multiplies with the reciprocal of a number, which rounds in another way.
    return {f"{prefix}/{name}": total / count for name, total in zip(METRICS, totals, strict=True)}
