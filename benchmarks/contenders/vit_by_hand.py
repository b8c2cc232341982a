"""The hand-written loop for a timm model: autocast and, if `compile` is set, the model compiled with its loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.contenders.work import DEVICE, SETTINGS, TURNS, batches, digest, network, optimizer


def main() -> None:
    torch.set_float32_matmul_precision("high" if SETTINGS["precision"] == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = SETTINGS["precision"] == "tf32"
    model = network().train()
    adamw = optimizer(model.parameters())

    def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs).float(), targets)

    compiled: Any = torch.compile(compute_loss) if SETTINGS["compile"] else compute_loss
    for inputs, targets in TURNS.over(batches()):
        adamw.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=SETTINGS["precision"] == "bf16"):
            loss = compiled(inputs, targets)
        loss.backward()
        adamw.step()
    TURNS.end(digest=digest(model))


main()
