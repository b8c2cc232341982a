"""An optimizer for the matrices of a model, AdamW for its other parameters, and the format of matrix products."""

from __future__ import annotations

import contextlib
import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.overrides import TorchFunctionMode

ProductFormat = Literal["auto", "bfloat16", "float32"]
"""In which format Muon and its kin orthogonalise. `auto`: bfloat16, but float32 on a CPU without its instructions."""

_FORMAT = "dtype"
"""The field of a group that has this format. Checkpoints hold it, so that a run continues in the format it has."""


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16. A CPU without them takes 10 times as long or more."""
    has = torch.cpu.get_capabilities() if device.type == "cpu" else {"bf16": True}
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last on ARM


def choose_format(optimizer: Optimizer, dtype: ProductFormat) -> Optimizer:
    """Write into the groups in which format `orthogonalizing` lets them be orthogonalised; return the optimizer."""
    optimizer.defaults[_FORMAT] = dtype
    for group in optimizer.param_groups:
        fastest = "bfloat16" if all(has_bfloat16(p.device) for p in group["params"]) else "float32"
        group[_FORMAT] = fastest if dtype == "auto" else dtype
    return optimizer


def format_of(optimizer: Optimizer) -> str | None:
    """Return the format in which an optimizer orthogonalises; None: it does not, or has no choice."""
    return optimizer.param_groups[0].get(_FORMAT)


def orthogonalizing(groups: Sequence[Mapping[str, Any]]) -> AbstractContextManager[Any]:
    """Return a context in which code that converts to bfloat16 computes in the format of these groups.

    Muon of torch and of timm have no argument for it. A run from before there was a choice used bfloat16.
    """
    return _InFloat32() if groups[0].get(_FORMAT) == "float32" else contextlib.nullcontext()


class _InFloat32(TorchFunctionMode):
    """Inside this context, a copy in bfloat16 is one in float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is Tensor.bfloat16 or (func is Tensor.to and given.get("dtype") is torch.bfloat16):
            return args[0].to(torch.float32, copy=True)  # what follows changes it in place
        return func(*args, **given)


class MatricesWithAdamW(Optimizer):
    """Updates matrices with one optimizer and all other parameters with AdamW.

    Each given group becomes a group of matrices (2-D parameters) and a group of the other parameters. Both use the same
    learning rate and weight decay.

    Args:
        params: parameters or parameter groups.
        matrices: makes the optimizer of the matrices from their groups, `lr` and `weight_decay`.
        lr: learning rate of both.
        weight_decay: decoupled weight decay of both.
        dtype: of the products of matrices.
        betas, eps, fused: arguments of AdamW.
    """

    def __init__(
        self,
        params: Any,
        matrices: Callable[..., Optimizer],
        *,
        lr: float,
        weight_decay: float,
        dtype: ProductFormat,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None,
    ) -> None:
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        super().__init__(params, shared)
        self._parts: list[Optimizer] = []
        if groups := _select(self.param_groups, lambda p: p.ndim == 2):
            self._parts.append(choose_format(matrices(groups, **shared), dtype))
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
            with orthogonalizing(part.param_groups):
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
