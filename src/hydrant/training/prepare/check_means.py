"""Whether the losses of a user's code are means over the samples, however micro-batches divide these."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import nn

from hydrant.batch import Batch, Outcome, is_inexact
from hydrant.errors import ConfigError
from hydrant.tasks.losses import is_of_torch

_SMALL = 1e-6  # a loss whose rounding says nothing


def check_means(task: Any, pair: Batch, evaluate: Callable[[Batch], Outcome]) -> None:
    """Check that a loss in code of the user's is no sum over the samples: that of two is not the sum of those of each.

    A sum is one with other weights too.

    Args:
        task: whose losses they are.
        pair: two samples.
        evaluate: calls the task in evaluation mode.

    Raises:
        ConfigError: it is one.
    """
    losses = (getattr(task, name, None) for name in ("loss", "own_loss"))
    loss: Any = next((part for part in losses if callable(part) and not inspect.ismethod(part)), None)
    is_own = not (type(task).__module__.startswith("hydrant.") and (loss is None or is_of_torch(loss)))
    is_pair = all(isinstance(tree, torch.Tensor) and len(tree) == 2 for tree in pair)
    if task.loss_of_batch or not is_own or not is_pair:
        return
    if _sums(pair, evaluate):
        with _moved(task):  # a loss of pairs is one by chance if all outputs are 0
            found = _sums(pair, evaluate)
        for name, (two, *ones) in found.items():
            message = f"gives a sum over the samples as {name!r}: {two:g} for two, {ones[0]:g} and {ones[1]:g} for each"
            reason = "the result would depend on micro_batch_size and eval_batch_size"
            remedy = "give the mean" if loss else "give the mean, or num_targets=1 if the batch is one target"
            raise ConfigError("task.loss" if loss else "task", f"{message}; {reason}", remedy=remedy)


def _sums(pair: Batch, evaluate: Callable[[Batch], Outcome]) -> dict[str, list[float]]:
    """Return the losses that are sums: of two samples and of each."""
    both = evaluate(pair)
    try:
        each = [evaluate(Batch(*(tree[n : n + 1] for tree in pair))) for n in range(2)]
    except Exception:  # the model needs several samples
        return {}
    if int(both.num_targets) != sum(int(one.num_targets) for one in each):
        return {}
    sums: dict[str, list[float]] = {}
    for name, value in both.losses.items():
        values: list[Any] = [value, *(one.losses.get(name) for one in each)]
        if not all(isinstance(v, torch.Tensor) and v.numel() == 1 for v in values):
            continue
        two, *ones = (float(v.detach()) for v in values)
        if abs(two) > _SMALL and math.isclose(two, sum(ones), rel_tol=1e-4):
            sums[name] = [two, *ones]
    return sums


@contextlib.contextmanager
def _moved(task: nn.Module) -> Generator[None]:
    """Add noise to the parameters of a task, and put them back."""
    generator = torch.Generator().manual_seed(0)
    saved = [(p, p.detach().clone()) for p in task.parameters() if is_inexact(p)]
    try:
        with torch.no_grad():
            for parameter, _ in saved:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in saved:
                parameter.copy_(value)
