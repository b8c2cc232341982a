"""Gradients of an update."""

# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.commands.eject.program.data import prepared
from hydrant.commands.eject.program.loss_compiled import compiled_loss
from hydrant.commands.eject.program.optimizer import clip_gradients, gradient_norm
from hydrant.commands.eject.program.parts import (
    TrainingSamples,
    forward,
    loss_and_metrics,
    num_targets,
    read_batch,
    samples_of,
    to_device,
)
from hydrant.commands.eject.program.ranks import sync_of_step
from hydrant.commands.eject.program.settings import *
from hydrant.seeding import _GOLDEN, _MASK, MIXING, UPDATE, hash_of  # pyright: ignore[reportPrivateUsage]


def add_gradients(
    model: nn.Module, train: TrainingSamples, update: int, mixup: Any, scaler: Any
) -> list[tuple[int, Tensor]]:
    """Add the gradients of the mean loss of an update; return the sizes of its batches and their METRICS."""
    measured = list[tuple[int, Tensor]]()
    for batch_idx, chosen in enumerate(
        train.of(update)
        if LOADS
        else samples_of(update).split(MICRO_BATCH_SIZE)[RANK::NUM_RANKS]
        if RANKED
        else samples_of(update).split(MICRO_BATCH_SIZE)
    ):
        if LOADS:
            inputs, targets = to_device(*chosen)
        elif READS:
            inputs, targets = read_batch(train, chosen)
        elif NORMALIZES:
            inputs, targets = prepared(train[0], chosen), train[1][chosen % len(train[1])]
        else:
            inputs, targets = train[0][chosen], train[1][chosen]
        if RANKED:
            batch_idx = batch_idx * NUM_RANKS + RANK  # among those of all ranks
        if MIXES:
            inputs, targets = mix_samples(mixup, inputs, targets, update, batch_idx)
        torch.manual_seed((hash_of(SEED, UPDATE, batch_idx) + update * _GOLDEN) & _MASK)  # for dropout
        with sync_of_step(model, batch_idx) if SYNCS_ONCE else nullcontext():
            with torch.autocast(DEVICE.type, AUTOCAST) if AUTOCAST is not None else nullcontext():
                if COMPILES_LOSS:
                    loss, metrics = compiled_loss(model, inputs, targets)
                else:
                    loss, metrics = loss_and_metrics(forward(), targets)
            if ACCUMULATES or VARIES:
                if RANKED:
                    # Its part of the mean loss of the update, times NUM_RANKS, because the ranks average gradients.
                    weight = torch.tensor(MICRO_BATCH_SIZE * NUM_RANKS / BATCH_SIZE, device=DEVICE)
                else:
                    weight = torch.tensor(MICRO_BATCH_SIZE / BATCH_SIZE, device=DEVICE)  # in the mean loss
                if VARIES:
                    weight *= num_targets() / (MICRO_BATCH_SIZE * TARGETS_PER_SAMPLE)
                if SCALES_LOSS:
                    scaler.scale(loss).backward(weight)
                else:
                    loss.backward(weight)  # adds the gradients of weight * loss
            elif SCALES_LOSS:
                scaler.scale(loss).backward()
            else:
                loss.backward()
        measured.append((num_targets(), metrics))
    if VARIES:  # the weights above are those of batches in which all targets count
        num_counted = torch.stack([torch.as_tensor(size) for size, _ in measured]).sum()
        if RANKED:
            dist.all_reduce(num_counted)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= BATCH_SIZE * TARGETS_PER_SAMPLE / num_counted.clamp(min=1)
    return measured


def restore_buffers(model: nn.Module, before: list[Tensor]) -> None:
    """Give the buffers of the model the values that they had before an update, which is not made."""
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)


def mean_loss(measured: list[tuple[int, Tensor]]) -> Tensor:
    """Return the mean loss of an update, shape (), float64."""
    sums = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for size, metrics in measured:
        sums += metrics[0].float() * size  # the loss of a float32 graph
    count = sum(size for size, _ in measured)
    # CUDA rounds `/ count` in another way.
    return sums / torch.as_tensor(count, dtype=torch.float64, device=DEVICE)


def step_with_closure(
    model: nn.Module, optimizer: Any, train: TrainingSamples, update: int, mixup: Any
) -> tuple[list[tuple[int, Tensor]], Tensor]:
    """Let the optimizer make an update, for which it evaluates the loss several times.

    Returns the metrics and the norm of the gradients of its first evaluation.
    """
    evaluations = list[tuple[list[tuple[int, Tensor]], Tensor]]()

    def closure() -> Tensor:
        optimizer.zero_grad()
        measured = add_gradients(model, train, update, mixup, None)
        norm = clip_gradients(model, optimizer) if CLIPS else gradient_norm(model, optimizer)
        evaluations.append((measured, norm))
        return mean_loss(measured)

    optimizer.step(closure)
    return evaluations[0]


def mix_samples(
    mixup: Any, inputs: Tensor, targets: Tensor, update: int, batch_idx: int
) -> tuple[Tensor, Tensor]:
    """Return each sample mixed with another one; the targets become the probabilities of classes."""
    np.random.seed(hash_of(MIXING, SEED, update, batch_idx) & 0xFFFFFFFF)  # timm draws from NumPy
    if LOADS:
        inputs = inputs.clone()  # timm changes them, and an update may be made again
    mixed = mixup(inputs, targets)
    return mixed[0], mixed[1].float()
