"""A digest of final weights, to compare trainings bit for bit."""

from __future__ import annotations

import hashlib

from torch import nn


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of the bits of all weights, in order.

    Raises:
        RuntimeError: A weight is not finite, so the measured time is meaningless.
    """
    hasher = hashlib.sha256()
    for parameter in model.parameters():
        if not parameter.isfinite().all():
            raise RuntimeError("a weight is not finite")
        hasher.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()
