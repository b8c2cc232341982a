"""Lightning Fabric: the hand-written loop with its wrappers."""

from __future__ import annotations

import torch.nn.functional as F
from lightning.fabric import Fabric

from benchmarks.contenders.work import TURNS, batches, digest, network, optimizer


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    model = network()
    wrapped, adamw = fabric.setup(model, optimizer(model.parameters()))
    for inputs, targets in TURNS.over(batches()):
        adamw.zero_grad(set_to_none=True)
        fabric.backward(F.cross_entropy(wrapped(inputs), targets))
        adamw.step()
    TURNS.end(digest=digest(model))


main()
