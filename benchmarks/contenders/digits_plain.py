"""The plain loop on the digits: the same network, a DataLoader and torch's default AdamW.

With `is_limit`, it is the same loop without a DataLoader and with the fused AdamW.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.contenders.digits_samples import accuracy, samples
from benchmarks.contenders.work import SETTINGS, TURNS
from hydrant.data import digits
from hydrant.models import MLP


def epochs(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from loader


def in_memory(whole: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches without a DataLoader, from one permutation per epoch: the minimal loading work."""
    while True:
        for numbers in torch.randperm(len(whole[1])).split(64)[:-1]:
            yield whole[0][numbers], whole[1][numbers]


def main() -> None:
    is_limit = SETTINGS["is_limit"]
    torch.manual_seed(0)
    model = MLP(input_shape=(1, 8, 8), num_classes=10, hidden=[256, 256], dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=is_limit or None)
    whole = samples(digits().train)
    loader = DataLoader(TensorDataset(*whole), batch_size=64, shuffle=True, drop_last=True)
    batches = in_memory(whole) if is_limit else epochs(loader)
    for _, (inputs, targets) in zip(TURNS.over([None]), batches, strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    TURNS.end(accuracy=accuracy(model))


main()
