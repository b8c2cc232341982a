"""An optimizer for the matrices of a model, and AdamW for its other parameters."""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer


class MatricesWithAdamW(Optimizer):
    """Updates matrices with one optimizer and all other parameters with AdamW.

    Each given group becomes a group of matrices (2-D parameters) and a group of the other parameters. Both use the same
    learning rate and weight decay.

    Args:
        params: parameters or parameter groups.
        matrices: makes the optimizer of the matrices from their groups, `lr` and `weight_decay`.
        lr: learning rate of both.
        weight_decay: decoupled weight decay of both.
        betas, eps, fused: arguments of AdamW.
    """

    def __init__(
        self,
        params: Any,
        matrices: Callable[..., Optimizer],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None,
    ) -> None:
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        super().__init__(params, shared)
        self._parts: list[Optimizer] = []
        if groups := _select(self.param_groups, lambda p: p.ndim == 2):
            self._parts.append(matrices(groups, **shared))
        if groups := _select(self.param_groups, lambda p: p.ndim != 2):
            self._parts.append(AdamW(groups, **shared, betas=(betas[0], betas[1]), eps=eps, fused=fused))
        for part in self._parts:
            self.defaults = {**part.defaults, **self.defaults}
        self._share_groups()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply both updates; `closure` as for any torch optimizer."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self._parts:
            apply = inspect.unwrap(type(part).step)  # torch's wrappers break the graph of a compiled update
            apply(part)
        return loss

    def state_dict(self) -> dict[str, Any]:
        state: dict[int, Any] = {}
        groups = list[dict[str, Any]]()
        for part in self._parts:
            part_state, offset = part.state_dict(), sum(len(group["params"]) for group in groups)
            state |= {offset + position: value for position, value in part_state["state"].items()}
            groups += [
                {**group, "params": [offset + position for position in group["params"]]}
                for group in part_state["param_groups"]
            ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups: list[dict[str, Any]] = state_dict["param_groups"]
        for part in self._parts:
            part_groups, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            positions = {position for group in part_groups for position in group["params"]}
            state = {position: v for position, v in state_dict["state"].items() if position in positions}
            part.load_state_dict({"state": state, "param_groups": part_groups})
        self._share_groups()

    def _share_groups(self) -> None:
        # The same dicts as in the parts, so that a schedule that writes self.param_groups[i]["lr"] reaches a part.
        self.param_groups = [group for part in self._parts for group in part.param_groups]
        state: Any = _States(*(part.state for part in self._parts))
        self.state = state


class _States(ChainMap[Any, Any]):
    """A read-only view of the states of several optimizers.

    The state of an optimizer is a defaultdict: to look for a weight that it does not have would add one. So a plain
    ChainMap would find an empty state in the first optimizer for a weight of the second.
    """

    def __getitem__(self, key: Any) -> Any:
        return next((states for states in self.maps if key in states), {})[key]


def _select(groups: list[dict[str, Any]], predicate: Callable[[nn.Parameter], bool]) -> list[dict[str, Any]]:
    """Return the groups with only the parameters for which the predicate is true, without empty groups."""
    selected = [{**group, "params": [p for p in group["params"] if predicate(p)]} for group in groups]
    return [group for group in selected if group["params"]]
