"""Lightning's Trainer with all that can be turned off turned off; `features` turns on what it has of them."""

from __future__ import annotations

from typing import Any

import lightning
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks.contenders.work import SETTINGS, TURNS, batches, digest, network, optimizer


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        logits = self.net(inputs)
        loss = F.cross_entropy(logits, targets)
        if SETTINGS["features"]:
            self.log("train/loss", loss)
            self.log("train/accuracy", (logits.argmax(1) == targets).float().mean())
        return loss

    def configure_optimizers(self) -> Any:
        stepping = optimizer(self.parameters())
        if not SETTINGS["features"]:
            return stepping
        schedule = CosineAnnealingLR(stepping, TURNS.num_updates)
        return {"optimizer": stepping, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Once:
    """An iterable without a length, read once."""

    def __iter__(self) -> Any:
        return TURNS.over(batches())


def main() -> None:
    module, full = Module(), SETTINGS["features"]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=TURNS.num_updates,
        logger=CSVLogger(".") if full else False,
        log_every_n_steps=50,
        gradient_clip_val=1.0 if full else None,
        enable_progress_bar=full,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        barebones=False,
    )
    trainer.fit(module, Once())
    TURNS.end(digest=digest(module.net))


main()
