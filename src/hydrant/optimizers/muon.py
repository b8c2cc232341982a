"""torch's Muon for the matrices of a model, and AdamW for all that is no matrix."""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer


class MuonWithAdamW(Optimizer):
    """`torch.optim.Muon` orthogonalises the update of a matrix, so biases, norms and filters need another rule.

    Each given group becomes one group of matrices (2-D parameters), updated by Muon, and one group of the
    rest, updated by AdamW. Both follow the same learning rate and decay; `adjust_lr_fn="match_rms_adamw"`
    makes Muon's updates as large as AdamW's, so that one rate serves both (Liu et al., "Muon is scalable for
    LLM training", 2025). Muon: Jordan et al., 2024.

    Args:
        params: parameters or parameter groups.
        lr: learning rate of both.
        weight_decay: decoupled decay of both.
        momentum, nesterov, ns_steps, adjust_lr_fn: of Muon.
        betas, eps: of AdamW.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        nesterov: bool,
        ns_steps: int,
        adjust_lr_fn: str | None,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        muon: dict[str, Any] = {
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        matrices, rest = _split(self.param_groups)
        self._parts: dict[str, Optimizer] = {}
        if matrices:
            self._parts["muon"] = Muon(matrices, lr=lr, weight_decay=weight_decay, **muon)
        if rest:
            self._parts["adamw"] = AdamW(
                rest, lr=lr, weight_decay=weight_decay, betas=(betas[0], betas[1]), eps=eps
            )
        for part in self._parts.values():
            self.defaults = {**part.defaults, **self.defaults}
        self._share_groups()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply both updates; `closure` as for any torch optimizer."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for part in self._parts.values():
            inspect.unwrap(type(part).step)(
                part
            )  # torch's wrappers would break the graph of a compiled update
        return loss

    def state_dict(self) -> dict[str, Any]:
        state: dict[int, Any] = {}
        groups = list[dict[str, Any]]()
        for part in self._parts.values():
            own, first = part.state_dict(), sum(len(group["params"]) for group in groups)
            state |= {first + place: value for place, value in own["state"].items()}
            groups += [
                {**group, "params": [first + place for place in group["params"]]}
                for group in own["param_groups"]
            ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups: list[dict[str, Any]] = state_dict["param_groups"]
        for part in self._parts.values():
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            places = {place for group in own for place in group["params"]}
            state = {place: value for place, value in state_dict["state"].items() if place in places}
            part.load_state_dict({"state": state, "param_groups": own})
        self._share_groups()

    def _share_groups(self) -> None:
        # The parts' own dicts: a schedule that writes self.param_groups[i]["lr"] writes the part's.
        self.param_groups = [group for part in self._parts.values() for group in part.param_groups]
        state: Any = ChainMap(*(part.state for part in self._parts.values()))  # to look at
        self.state = state


def _split(groups: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    def part(group: dict[str, Any], wanted: Callable[[nn.Parameter], bool]) -> dict[str, Any]:
        return {**group, "params": [p for p in group["params"] if wanted(p)]}

    matrices = [part(group, lambda p: p.ndim == 2) for group in groups]
    rest = [part(group, lambda p: p.ndim != 2) for group in groups]
    return [g for g in matrices if g["params"]], [g for g in rest if g["params"]]
