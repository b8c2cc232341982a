"""What an optimizer needs from the training loop."""

from __future__ import annotations

import inspect

from torch.optim import Optimizer


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's `step` requires a closure that evaluates the loss."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def has_modes(optimizer: Optimizer) -> bool:
    """Return whether the optimizer has modes to train and to evaluate, such as a schedule-free one."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))
