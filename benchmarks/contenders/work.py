"""The training of every contender: a network, its batches and its optimizer.

It is a small network on vectors, or, if SETTINGS has a `model`, a timm model on images, on CUDA if available.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.contenders.weights import digest as digest
from benchmarks.turns import Turns

Pair = tuple[Tensor, Tensor]
"""Inputs (batch size, *INPUT_SHAPE) and targets (batch size,)."""

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
MODEL: str | None = SETTINGS.get("model")
DEVICE = torch.device("cuda" if MODEL and torch.cuda.is_available() else "cpu")
TURNS = Turns(SETTINGS["num_warmup"], SETTINGS["num_blocks"], SETTINGS["block_size"], DEVICE)
BATCH_SIZE: int = SETTINGS.get("batch_size", 8)
INPUT_SHAPE = [3, SETTINGS["image_size"], SETTINGS["image_size"]] if MODEL else [32]
NUM_CLASSES = 1000 if MODEL else 10
LR = 0.001 if MODEL else 0.01


def batches() -> list[Pair]:
    """Return random samples with random classes: 64 batches of vectors, or 2 of images."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(BATCH_SIZE, *INPUT_SHAPE, generator=generator).to(DEVICE),
            torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator).to(DEVICE),
        )
        for _ in range(2 if MODEL else 64)
    ]


def split(pair: Pair) -> tuple[Pair, Pair]:
    """Split a batch into two micro-batches."""
    (inputs, targets), half = pair, BATCH_SIZE // 2
    return (inputs[:half], targets[:half]), (inputs[half:], targets[half:])


def network() -> nn.Module:
    """Return the timm model, or 32-64-10 with ReLU in between, on DEVICE."""
    torch.manual_seed(0)
    if MODEL:
        return timm.create_model(MODEL, num_classes=NUM_CLASSES, **SETTINGS.get("arguments", {})).to(DEVICE)
    torch.set_num_threads(1)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return AdamW with the fused step, torch's fastest, or the default one if SETTINGS has `fused=False`."""
    fused = SETTINGS.get("fused", True) or None  # False would disable foreach as well
    return torch.optim.AdamW(parameters, lr=LR, weight_decay=0.01, fused=fused)
