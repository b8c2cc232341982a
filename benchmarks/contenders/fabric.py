"""Lightning Fabric: the loop by hand, with its wrappers."""

from __future__ import annotations

import torch.nn.functional as F
from lightning.fabric import Fabric

from benchmarks.contenders.work import TURNS, batches, digest, network, optimizer


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    model = network()
    wrapped, stepping = fabric.setup(model, optimizer(model.parameters()))
    for inputs, targets in TURNS.over(batches()):
        stepping.zero_grad(set_to_none=True)
        fabric.backward(F.cross_entropy(wrapped(inputs), targets))
        stepping.step()
    TURNS.end(digest=digest(model))


main()
