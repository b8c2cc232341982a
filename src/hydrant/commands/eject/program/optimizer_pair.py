"""Two optimizers in one."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer


def part_of(groups: list[dict[str, Any]], *, are_matrices: bool) -> list[dict[str, Any]]:
    """Return parameter groups with only their matrices, or only their other parameters."""
    parts = [
        {**group, "params": [p for p in group["params"] if (p.ndim == 2) == are_matrices]} for group in groups
    ]
    return [part for part in parts if part["params"]]


class OptimizerPair:
    """Two optimizers of different parameters, used like one."""

    def __init__(self, matrices: Optimizer, others: Optimizer) -> None:
        self.parts = (matrices, others)
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Make both updates."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore both, with the parameter groups of the state."""
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.param_groups = [group for part in self.parts for group in part.param_groups]
