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
    """`timm.optim.create_optimizer_v2(params, opt=name, ...)`; `kwargs` are the optimizer's own arguments.

    `name` may carry timm's prefix `lookahead_`. Some names (`bnb...`, `fused...`) need packages of their own.
    """
    import timm.optim

    names = [str(known) for known in timm.optim.list_optimizers()]
    if name.removeprefix("lookahead_") not in names:
        raise unknown_name("optimizer.name", "timm optimizer", name, names)
    try:
        return timm.optim.create_optimizer_v2(params, opt=name, lr=lr, weight_decay=weight_decay, **kwargs)
    except (TypeError, ValueError, AssertionError, RuntimeError, ImportError) as error:
        told = (
            f"timm's {name} cannot be built ({first_line(error)}); choose another optimizer.name, or other "
        )
        raise ConfigError("optimizer.name", told + "optimizer.kwargs") from error
