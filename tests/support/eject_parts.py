"""Parts of a user, in tests of ejected files."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class PixelBag(nn.Module):
    """A bag of quantised pixels: every parameter has sparse gradients."""

    def __init__(self, *, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(16, num_classes, mode="sum", sparse=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, ...) -> logits (B, num_classes)."""
        return self.bag(inputs.flatten(1).mul(4).long().clamp(-8, 7) + 8)


class Points(Dataset[tuple[Tensor, int]]):
    """Points and the sign of their sum."""

    def __init__(self, count: int) -> None:
        self.points = torch.randn(count, 3, generator=torch.Generator().manual_seed(count))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.points[index], int(self.points[index].sum() > 0)
