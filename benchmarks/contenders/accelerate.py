"""Hugging Face Accelerate: the loop by hand, with its `Accelerator`."""

from __future__ import annotations

import torch.nn.functional as F
from accelerate import Accelerator

from benchmarks.contenders.work import TURNS, batches, digest, network, optimizer


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = network()
    model, stepping = accelerator.prepare(model, optimizer(model.parameters()))
    for inputs, targets in TURNS.over(batches()):
        stepping.zero_grad(set_to_none=True)
        accelerator.backward(F.cross_entropy(model(inputs), targets))
        stepping.step()
    TURNS.end(digest=digest(accelerator.unwrap_model(model)))


main()
