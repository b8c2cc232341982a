"""What every contender trains: a small network, its batches and its optimizer."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.turns import Turns

Pair = tuple[Tensor, Tensor]
"""Inputs (8, 32) and targets (8,)."""

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
TURNS = Turns(SETTINGS["num_warmup"], SETTINGS["num_blocks"], SETTINGS["block_size"])
LR = 0.01


def batches() -> list[Pair]:
    """64 batches of 8 random samples with one of 10 classes."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 32, generator=generator), torch.randint(10, (8,), generator=generator))
        for _ in range(64)
    ]


def network() -> nn.Module:
    """32-64-10, ReLU in between."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW in one fused operation, the fastest of torch's."""
    return torch.optim.AdamW(parameters, lr=LR, weight_decay=0.01, fused=True)


def digest(model: nn.Module) -> str:
    """Of the bits of all weights, in their order."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()
