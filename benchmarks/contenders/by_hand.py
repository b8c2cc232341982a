"""The loop that one writes oneself: the limit."""

from __future__ import annotations

import torch.nn.functional as F

from benchmarks.contenders.work import TURNS, batches, digest, network, optimizer


def main() -> None:
    model = network()
    stepping = optimizer(model.parameters())
    for inputs, targets in TURNS.over(batches()):
        stepping.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()
        stepping.step()
    TURNS.end(digest=digest(model))


main()
