"""Restore the state of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves_with_path


def restore(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what `optimizer.state_dict()` returned, every tensor with the dtype that it had.

    torch converts tensors to the dtype of their parameters. With bfloat16 weights, it so rounds those that an optimizer
    keeps in float32, such as the product of NAdam's betas, and the run would not continue exactly.

    This product stays on the host, unless the step is capturable: torch would move it to the device of the weights, and
    then wait for it in each update.
    """
    optimizer.load_state_dict(dict(state))
    restored: dict[Any, Any] = dict(tree_leaves_with_path(optimizer.state_dict()["state"]))
    for path, saved in tree_leaves_with_path(state["state"]):
        target = restored.get(path)
        if isinstance(saved, Tensor) and isinstance(target, Tensor) and target.dtype != saved.dtype:
            target.data = saved.to(target.device)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            own: dict[str, Any] = optimizer.state.get(parameter, {})
            if isinstance(product := own.get("mu_product"), Tensor) and not group.get("capturable"):
                own["mu_product"] = product.cpu()
