"""Weight decay inside a compiled optimizer step, with its value in a tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.training.compile.supported import shrinks_weights


@dataclass(frozen=True)
class _DecayedGroup:
    """A parameter group with weight decay."""

    group_idx: int
    weights: list[Tensor]
    shrinks_weights: bool
    factor: Tensor
    """0-dim, float64, on the device. The weights are multiplied by it, or the product is added to the gradients."""


class CompiledWeightDecay:
    """Applies the weight decay instead of an optimizer whose step would begin with it.

    A group whose weight decay is 0 and not scheduled adds nothing to the graph.
    """

    def __init__(
        self, optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], *, is_scheduled: bool
    ) -> None:
        self._optimizer = optimizer
        self._decayed: list[_DecayedGroup] = []
        for group_idx, group in enumerate(groups):
            shrinks = shrinks_weights(optimizer, group)
            if shrinks is not None and (is_scheduled or group["weight_decay"] != 0):
                # Collected here and not while Dynamo traces, because it handles param_groups in a special way.
                weights = list(group["params"])
                factor = torch.zeros((), dtype=torch.float64, device=weights[0].device)
                self._decayed.append(_DecayedGroup(group_idx, weights, shrinks, factor))

    @contextlib.contextmanager
    def replace_optimizer_decay(self) -> Generator[None]:
        """Copy the weight decay of the groups to the factors of `apply`, and set it to 0 in this context.

        The learning rate is a tensor and the weight decay a number, so nothing is read from the device.
        """
        groups = [self._optimizer.param_groups[decayed.group_idx] for decayed in self._decayed]
        values = [group["weight_decay"] for group in groups]
        for decayed, group, decay in zip(self._decayed, groups, values, strict=True):
            if decayed.shrinks_weights:
                decayed.factor.copy_(1 - group["lr"] * decay)
            else:  # with maximize the optimizer negates the gradients afterwards
                decayed.factor.fill_(-decay if group.get("maximize") else decay)
            group["weight_decay"] = 0.0
        try:
            yield
        finally:
            for group, decay in zip(groups, values, strict=True):
                group["weight_decay"] = decay

    def apply(self) -> None:
        """Shrink the weights, or add the decay to the gradients. Runs inside the compiled step."""
        for decayed in self._decayed:
            weights = [p for p in decayed.weights if p.grad is not None]
            gradients = [p.grad for p in weights if p.grad is not None]
            if not weights:
                continue
            if decayed.shrinks_weights:
                torch._foreach_mul_(weights, decayed.factor)  # pyright: ignore[reportPrivateUsage]
            else:
                decay = torch._foreach_mul(weights, decayed.factor)  # pyright: ignore[reportPrivateUsage]
                torch._foreach_add_(gradients, decay)  # pyright: ignore[reportPrivateUsage]
