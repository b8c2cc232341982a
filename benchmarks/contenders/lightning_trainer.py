"""Lightning's Trainer in barebones mode. `features` turns on the features that it has."""

from __future__ import annotations

import itertools
import math
from typing import Any

import lightning
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.contenders.work import SETTINGS, TURNS, batches, digest, network, optimizer, split


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        logits = self.net(inputs)
        loss = F.cross_entropy(logits, targets)
        if SETTINGS.get("features"):
            self.log("train/loss", loss)
            self.log("train/accuracy", (logits.argmax(1) == targets).float().mean())
        return loss

    def configure_optimizers(self) -> Any:
        adamw = optimizer(self.parameters())
        if not SETTINGS.get("features"):
            return adamw
        schedule = LambdaLR(adamw, lambda n: 0.5 * (1 + math.cos(math.pi * n / TURNS.num_updates)))
        return {"optimizer": adamw, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Once:
    """An iterable without a length, which can be iterated once; with features, two micro-batches per update."""

    def __iter__(self) -> Any:
        if not SETTINGS.get("features"):
            return TURNS.over(batches())
        return itertools.chain.from_iterable(TURNS.over([split(pair) for pair in batches()]))


def main() -> None:
    module = Module()
    features: dict[str, Any] = {"barebones": True}
    if SETTINGS.get("features"):
        features = {
            "logger": CSVLogger("."), "log_every_n_steps": 50, "gradient_clip_val": 1.0, "accumulate_grad_batches": 2,
            "enable_checkpointing": False, "enable_model_summary": False,
        }  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=TURNS.num_updates, use_distributed_sampler=False, **features
    )
    trainer.fit(module, Once())
    TURNS.end(digest=digest(module.net))


main()
