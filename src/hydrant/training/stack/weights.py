"""The weights of several lanes as one tensor, of which the weights of each lane are views."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedWeights:
    """The weights that one group of an optimizer trains: one row for each lane, which holds all of its weights.

    Args:
        parameters: of each lane, in the same order. They become views of the rows.
    """

    def __init__(self, parameters: Sequence[Sequence[nn.Parameter]]) -> None:
        self.parameters = [list(of_lane) for of_lane in parameters]
        self._shapes = [p.shape for p in self.parameters[0]]
        self._sizes = [p.numel() for p in self.parameters[0]]
        rows = [torch.cat([p.detach().reshape(-1) for p in of_lane]) for of_lane in self.parameters]
        self.rows = torch.stack(rows).requires_grad_()
        """(lanes, number of weights): the leaf tensor whose gradient backward computes."""
        for lane, of_lane in enumerate(self.parameters):
            for parameter, value in zip(of_lane, self.views(self.rows.detach()[lane]), strict=True):
                parameter.data = value

    def views(self, row: Tensor) -> list[Tensor]:
        """Return a row, (number of weights,), as tensors in the shapes of the weights."""
        return [part.view(shape) for part, shape in zip(row.split(self._sizes), self._shapes, strict=True)]

    def stacked(self, rows: Tensor) -> list[Tensor]:
        """Return all rows as tensors in the shapes of the weights, with the lanes in front."""
        parts = rows.split(self._sizes, dim=1)
        return [part.view(len(rows), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def show_gradients(self) -> None:
        """Let every parameter have its part of the gradient."""
        gradient = self.rows.grad
        for lane, of_lane in enumerate(self.parameters):
            values = [None] * len(of_lane) if gradient is None else self.views(gradient[lane])
            for parameter, value in zip(of_lane, values, strict=True):
                parameter.grad = value


def stack_in_place(tensors: Sequence[Tensor]) -> Tensor:
    """Stack a tensor of each lane, (lanes, ...); they become views of the result."""
    stacked = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, value in zip(tensors, stacked.unbind(), strict=True):
        tensor.data = value
    return stacked
