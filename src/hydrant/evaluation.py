"""A task's losses and metrics over every sample of a split, each counted once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import Batch, Outcome
from hydrant.memory import EVALUATION, memory_told
from hydrant.metrics import Meter
from hydrant.parallel import Parallel
from hydrant.precision import Precision


@torch.no_grad()
@memory_told(EVALUATION)
def evaluate(
    task: nn.Module,
    batches: Iterable[Batch],
    precision: Precision,
    parallel: Parallel,
    forward: Callable[[nn.Module, Batch], Outcome],
    observe: Callable[[Batch, Outcome], None] | None = None,
) -> dict[str, float]:
    """The means over `batches` and the task's own metrics: `val/...`. What a task draws in it is always the same.

    `forward` gives the task's outcome, eager or compiled; `observe` is told of it.
    """
    device = parallel.device  # where weights are kept may be another
    meter = Meter(device, parallel.sum)
    metrics: dict[str, Any] = dict(cast("nn.ModuleDict", task.metrics).items())
    with _evaluating(task):
        for batch_idx, batch, counts in parallel.in_turn(batches):
            seeding.seed_evaluation(batch_idx, device)
            with precision.autocast():
                outcome = forward(task, precision.cast(batch))
            if not counts:
                continue
            meter.add(outcome.scalars(), outcome.num_targets)
            for metric in metrics.values():
                metric.update(outcome.predictions, batch.targets)
            if observe is not None:
                observe(batch, outcome)
    values = meter.read()
    for name, metric in metrics.items():
        values[name] = float(metric.compute())
        metric.reset()
    return {f"val/{name}": value for name, value in values.items()}


@torch.no_grad()
def draw(task: Any, precision: Precision) -> dict[str, Tensor]:
    """The pictures of a task, by name; (3 or 1, H, W) in 0..1, on the host."""
    with _evaluating(task), precision.autocast():
        return {name: picture.float().cpu() for name, picture in task.pictures().items()}


@contextlib.contextmanager
def _evaluating(task: nn.Module) -> Generator[None]:
    was_training = task.training
    task.eval()
    try:
        yield
    finally:
        task.train(was_training)
