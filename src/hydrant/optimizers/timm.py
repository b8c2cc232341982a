"""Any optimizer of timm, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hydrant.errors import ConfigError, first_line, unknown_name

PRELOAD = ("timm.optim",)


def timm_optimizer(
    params: list[dict[str, Any]], *, name: str, lr: float, weight_decay: float, kwargs: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Return `timm.optim.create_optimizer_v2(params, opt=name, ...)`.

    Args:
        params: parameter groups.
        name: a name of `timm.optim.list_optimizers()`, optionally with timm's prefix `lookahead_`. Some optimizers
            (`bnb...`, `fused...`) need additional packages.
        kwargs: arguments of this optimizer.

    Raises:
        ConfigError: the name is unknown, or timm cannot build the optimizer.
    """
    import timm.optim

    names = [str(known) for known in timm.optim.list_optimizers()]
    if name.removeprefix("lookahead_") not in names:
        raise unknown_name("optimizer.name", "timm optimizer", name, names)
    try:
        return timm.optim.create_optimizer_v2(params, opt=name, lr=lr, weight_decay=weight_decay, **kwargs)
    except (TypeError, ValueError, AssertionError, RuntimeError, ImportError) as error:
        remedy = "choose another optimizer.name, or other optimizer.kwargs"
        message = f"timm's {name} cannot be built ({first_line(error)}); {remedy}"
        raise ConfigError("optimizer.name", message) from error
