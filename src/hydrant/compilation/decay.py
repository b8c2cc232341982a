"""The weight decay of a compiled update: in its graph, with its value in a tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.compilation.known import shrinks_weights


@dataclass(frozen=True)
class _Decayed:
    """A group with a weight decay."""

    group_idx: int
    weights: list[Tensor]
    shrinks_weights: bool
    factor: Tensor
    """0-dim, float64, on the host: what the weights are multiplied by, or their share that gradients are given."""


class GraphDecay:
    """Decays the weights of an optimizer that would do so before all else, in its place.

    A group whose decay is 0 and not scheduled has none in the graph.
    """

    def __init__(
        self, optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], *, is_scheduled: bool
    ) -> None:
        self._optimizer = optimizer
        self._decayed: list[_Decayed] = []
        for group_idx, group in enumerate(groups):
            shrinks = shrinks_weights(optimizer, group)
            if shrinks is not None and (is_scheduled or group["weight_decay"] != 0):
                # Not looked up when traced: Dynamo has its own idea of param_groups.
                weights = list(group["params"])
                factor = torch.zeros((), dtype=torch.float64)
                self._decayed.append(_Decayed(group_idx, weights, shrinks, factor))

    @contextlib.contextmanager
    def instead_of_its_own(self) -> Generator[None]:
        """While it lasts, `apply` decays by what the groups say, and the optimizer does not."""
        groups = [self._optimizer.param_groups[decayed.group_idx] for decayed in self._decayed]
        own = [float(group["weight_decay"]) for group in groups]
        for decayed, group, decay in zip(self._decayed, groups, own, strict=True):
            share = -decay if group.get("maximize") else decay  # of gradients, which are negated afterwards
            decayed.factor.fill_(1 - float(group["lr"]) * decay if decayed.shrinks_weights else share)
            group["weight_decay"] = 0.0
        try:
            yield
        finally:
            for group, decay in zip(groups, own, strict=True):
                group["weight_decay"] = decay

    def apply(self) -> None:
        """Decay the weights, or add the decay to the gradients; to be compiled with the update."""
        for decayed in self._decayed:
            weights = [p for p in decayed.weights if p.grad is not None]
            gradients = [p.grad for p in weights if p.grad is not None]
            if not weights:
                continue
            if decayed.shrinks_weights:
                torch._foreach_mul_(weights, decayed.factor)  # pyright: ignore[reportPrivateUsage]
            else:
                shares = torch._foreach_mul(weights, decayed.factor)  # pyright: ignore[reportPrivateUsage]
                torch._foreach_add_(gradients, shares)  # pyright: ignore[reportPrivateUsage]
