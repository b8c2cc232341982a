"""Whether the losses of a user's code are means over the samples, however micro-batches divide these."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from hydrant.batch import Batch, Outcome
from hydrant.errors import ConfigError

_SMALL = 1e-6  # a loss whose rounding says nothing


def check_means(task: Any, pair: Batch, evaluate: Callable[[Batch], Outcome]) -> None:
    """Check that a loss in code of the user's is no sum over the samples: that of two is not the sum of those of each.

    Args:
        task: whose losses they are.
        pair: two samples.
        evaluate: calls the task in evaluation mode.

    Raises:
        ConfigError: it is one.
    """
    losses = (getattr(task, name, None) for name in ("loss", "own_loss"))
    loss: Any = next((part for part in losses if callable(part) and not inspect.ismethod(part)), None)
    parts = (type(task), getattr(loss, "func", loss if hasattr(loss, "__name__") else type(loss)))
    is_own = any(not str(part.__module__).startswith(("hydrant.", "torch.", "builtins")) for part in parts)
    if not is_own or not all(isinstance(tree, torch.Tensor) for tree in pair):
        return
    both = evaluate(pair)
    each = [evaluate(Batch(*(tree[n : n + 1] for tree in pair))) for n in range(2)]
    if int(both.num_targets) != sum(int(one.num_targets) for one in each):
        return
    for name, value in both.losses.items():
        values: list[Any] = [value, *(one.losses.get(name) for one in each)]
        if not all(isinstance(v, torch.Tensor) and v.numel() == 1 for v in values):
            continue
        two, *ones = map(float, values)
        if abs(two) > _SMALL and math.isclose(two, sum(ones), rel_tol=1e-4):
            message = f"gives a sum over the samples as {name!r}: {two:g} for two, {ones[0]:g} and {ones[1]:g} for each"
            reason = "the result would depend on micro_batch_size and eval_batch_size"
            remedy = "give the mean" if loss else "give the mean, or num_targets=1 if the batch is one target"
            raise ConfigError("task.loss" if loss else "task", f"{message}; {reason}", remedy=remedy)
