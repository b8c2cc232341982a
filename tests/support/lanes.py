"""Runs that train as lanes of a stack, beside the same runs alone."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.build import prepare
from hydrant.training.loop import make_update
from hydrant.training.plan import Plan
from hydrant.training.scratch import build_scratch
from hydrant.training.stack import Stack
from hydrant.training.trainer import Trainer

TINY = (
    "tracker=local",
    "duration=1000",
    "model.hidden=[16]",
    "limit_train_samples=200",
    "limit_val_samples=50",
)


def plan_of(words: Sequence[str]) -> Plan:
    return prepare(check(compose(list(words))))


@contextlib.contextmanager
def trainers_of(*runs: Sequence[str]) -> Generator[list[Trainer]]:
    """Build runs from their overrides, in one process group."""
    plans = [plan_of(words) for words in runs]
    with plans[0].world.process_group():
        yield [build_scratch(plan) for plan in plans]


@dataclass(frozen=True)
class Differences:
    """How far runs in a stack are from the runs alone: of the weights the 2-norm of the difference to that of all."""

    weights: float
    loss: float
    buffers: float


def differences(base: Sequence[str], lanes: Sequence[str], num_updates: int) -> Differences:
    """Train runs as lanes and alone; return the largest differences of a run."""
    runs = [[*base, *lane.split()] for lane in lanes]
    with trainers_of(*runs, *runs) as trainers:
        stacked, alone = trainers[: len(runs)], trainers[len(runs) :]
        stack = Stack(stacked)
        for _ in range(num_updates):
            stack.update(measure=True)
        stack.sync()
        for trainer in alone:
            for _ in range(num_updates):
                make_update(trainer, measure=True)
        pairs = list(zip(stacked, alone, strict=True))
        losses = [(a.meter.read()["loss"], b.meter.read()["loss"]) for a, b in pairs]
        return Differences(
            max(_distance(list(a.task.parameters()), list(b.task.parameters())) for a, b in pairs),
            max(abs(one - other) / abs(other) for one, other in losses),
            max(_distance(list(a.task.buffers()), list(b.task.buffers())) for a, b in pairs),
        )


@torch.no_grad()
def _distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    if not one:
        return 0.0
    a, b = (torch.cat([t.reshape(-1).double() for t in tensors]) for tensors in (one, other))
    return float((a - b).norm() / b.norm().clamp(min=1e-12))
