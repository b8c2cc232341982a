"""The hand-written loop, which is the lower limit. `features` adds those of a "full" loop."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from benchmarks.contenders.work import LR, SETTINGS, TURNS, batches, digest, network, optimizer, split


def bare(model: nn.Module, adamw: torch.optim.Optimizer) -> None:
    for inputs, targets in TURNS.over(batches()):
        adamw.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()
        adamw.step()


def full(model: nn.Module, adamw: torch.optim.Optimizer) -> None:
    """Train with a schedule, clipping, two micro-batches, means, a progress bar, and a row every 50 updates."""
    with Path("metrics.jsonl").open("w") as file, tqdm(total=TURNS.num_updates) as bar:
        loss_sum, correct = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for num_updates, halves in enumerate(TURNS.over([split(pair) for pair in batches()])):
            for group in adamw.param_groups:
                group["lr"] = LR * 0.5 * (1 + math.cos(math.pi * num_updates / TURNS.num_updates))
            adamw.zero_grad(set_to_none=True)
            for inputs, targets in halves:
                logits = model(inputs)
                loss = F.cross_entropy(logits, targets)
                (loss / 2).backward()
                loss_sum += loss.detach()
                correct += (logits.argmax(1) == targets).float().mean()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
            bar.update()
            if (num_updates + 1) % 50 == 0:
                loss, accuracy = loss_sum.item() / 100, correct.item() / 100
                row = {"loss": loss, "accuracy": accuracy, "grad_norm": norm.item()}
                file.write(json.dumps(row) + "\n")
                file.flush()
                loss_sum.zero_()
                correct.zero_()


def main() -> None:
    model = network()
    adamw = optimizer(model.parameters())
    (full if SETTINGS.get("features") else bare)(model, adamw)
    TURNS.end(digest=digest(model))


main()
