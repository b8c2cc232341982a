"""Weights of two trainings, compared."""

from __future__ import annotations

import hashlib

from torch import nn


def digest(model: nn.Module) -> str:
    """Of the bits of all weights, in their order.

    Raises:
        RuntimeError: one is not finite: how fast that was tells nothing.
    """
    whole = hashlib.sha256()
    for parameter in model.parameters():
        if not parameter.isfinite().all():
            raise RuntimeError("a weight is not finite")
        whole.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()
