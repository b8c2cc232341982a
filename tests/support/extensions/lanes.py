"""Runs that train as lanes of a stack, beside the same runs alone."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import torch
from configs import checked

from hydrant.extensions.stacked.check import prepare_like
from hydrant.extensions.stacked.stack import Stack
from hydrant.training.loop import make_update
from hydrant.training.prepare.build import build, prepare
from hydrant.training.trainer import Plan, Trainer, TrainState

TINY = (
    "tracker=local",
    "duration=1000",
    "model.hidden=[16]",
    "limit_train_samples=200",
    "limit_val_samples=50",
)
SEEDS = ("seed=0 optimizer.lr=1e-3", "seed=1 optimizer.lr=2e-3", "seed=1 optimizer.lr=3e-3")
VIT = (
    "model=timm", "model.name=vit_tiny_patch16_224", "global_batch_size=8",
    "+model.kwargs={img_size: 8, patch_size: 2, embed_dim: 16, depth: 2, num_heads: 2, drop_path_rate: 0.0}",
)  # fmt: skip
GPT = (
    "data=tokens", "model=gpt", "task=language_modeling", "optimizer.lr=1e-2", "optimizer.betas=[0.9,0.95]",
    "optimizer.weight_decay=0.1", "scheduler.warmup=5%", "max_grad_norm=1.0", "model.num_layers=1", "model.width=32",
    "model.num_heads=2",
    "global_batch_size=4", "data.sequence_length=32", "limit_val_samples=4", "tracker=local", "duration=1000",
)  # fmt: skip
BASE = tuple(word for word in TINY if not word.startswith("model"))

CASES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "mlp": (TINY, SEEDS),
    "dropout": (TINY, ["seed=0 model.dropout=0.1", "seed=0 model.dropout=0.3", "seed=1 model.dropout=0.5"]),
    "no dropout": ((*TINY, "model.dropout=0.0"), SEEDS),
    "batch norm and augmentation": (
        (*BASE, "model=convnet", "model.widths=[4,8]", "data.augment.max_shift=1", "global_batch_size=16"), SEEDS,
    ),
    "attention": ((*BASE, *VIT, "optimizer=sgd"), ["seed=0 optimizer.lr=0.01", "seed=1 optimizer.lr=0.02"]),
    # Adam divides by the root of squared gradients plus eps: with 1e-4, weights whose gradients are almost 0 amplify
    # rounding to 5e-4 in 200 updates.
    "language": ((*GPT, "optimizer.eps=1e-2"), ["seed=0 optimizer.lr=1e-3", "seed=1 optimizer.lr=2e-3"]),
    "documents": (
        (*GPT, "optimizer.eps=1e-2", "data.sampling=documents"),
        ["seed=0 optimizer.lr=1e-3", "seed=1 optimizer.lr=2e-3"],
    ),
    "label smoothing": (TINY, [f"seed={n} task.label_smoothing={n / 10}" for n in (1, 2, 3)]),
    "schedules": (
        TINY, ["scheduler=wsd", "scheduler=cosine seed=1", "scheduler=linear scheduler.warmup=5", "scheduler=plateau"],
    ),
    "other fields": ((*TINY, "optimizer=sgd", "+scheduler@schedules.momentum=linear"), SEEDS),
    "weight decay": (
        TINY, [
            "optimizer.weight_decay=0.1 optimizer.betas=[0.9,0.9]",
            "optimizer.weight_decay=1.0 seed=1",
            "optimizer.weight_decay=0.0 seed=1",
        ],
    ),
    "no weight decay": (
        (*TINY, "optimizer=nadam"), ["optimizer.weight_decay=0.0 seed=2", "optimizer.weight_decay=0.1"],
    ),
    "groups": ((*TINY, "param_groups.no_decay=true"), SEEDS),
    "norm": (TINY, [f"max_grad_norm={norm}" for norm in (0.1, 0.5, 10)]),
    "value": (TINY, [f"max_grad_value={value}" for value in (0.001, 0.01, 1.0)]),
    "agc": ((*TINY, "agc=0.01"), SEEDS),
    "ema": ((*TINY, "averaging=ema"), [f"averaging.decay={decay} seed=3" for decay in (0.5, 0.9, 0.99)]),
    "tail": ((*TINY, "averaging=tail", "averaging.start=3"), SEEDS),
    "mixup": ((*TINY, "mixing=mixup"), SEEDS),
    "micro-batches": ((*TINY, "micro_batch_size=16"), SEEDS),
    "growing batches": ((*TINY, "global_batch_size={0: 16, 5: 32}", "micro_batch_size=16"), SEEDS),
    "ignored targets": ((*TINY, "task.ignore_index=3"), SEEDS),
}  # fmt: skip
"""Overrides of all lanes, and those of each lane."""


def plan_of(words: Sequence[str]) -> Plan:
    return prepare(checked(tuple(words)))


@contextlib.contextmanager
def trainers_of(*runs: Sequence[str]) -> Generator[list[Trainer]]:
    """Build runs of one program from their overrides, on the same data, in one process group."""
    first = plan_of(runs[0])
    plans = [first, *(prepare_like(checked(tuple(words)), first) for words in runs[1:])]
    with plans[0].world.process_group():
        yield [build(plan, TrainState()) for plan in plans]


@dataclass(frozen=True)
class Differences:
    """How far runs in a stack are from the runs alone: of the weights the 2-norm of the difference to that of all."""

    weights: float
    loss: float
    buffers: float


def differences(
    base: Sequence[str],
    lanes: Sequence[str],
    num_updates: int,
    change: Callable[[Trainer], None] = lambda trainer: None,
) -> Differences:
    """Train runs as lanes and alone, each changed before; return the largest differences of a run."""
    runs = [[*base, *lane.split()] for lane in lanes]
    with trainers_of(*runs, *runs) as trainers:
        for trainer in trainers:
            change(trainer)
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
