"""Hugging Face Accelerate: the hand-written loop with its `Accelerator`."""

from __future__ import annotations

import torch.nn.functional as F
from accelerate import Accelerator

from benchmarks.contenders.work import TURNS, batches, digest, network, optimizer


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = network()
    model, adamw = accelerator.prepare(model, optimizer(model.parameters()))
    for inputs, targets in TURNS.over(batches()):
        adamw.zero_grad(set_to_none=True)
        accelerator.backward(F.cross_entropy(model(inputs), targets))
        adamw.step()
    TURNS.end(digest=digest(accelerator.unwrap_model(model)))


main()
