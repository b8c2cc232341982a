"""Weights of two trainings, compared."""

from __future__ import annotations

import hashlib

from torch import nn


def digest(model: nn.Module) -> str:
    """Of the bits of all weights, in their order."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()
