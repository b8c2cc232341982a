"""A short run of Lightning's Trainer on the digits as a Hydra app, for Hydra's own `--multirun`."""

from __future__ import annotations

import hydra
import lightning
import torch
import torch.nn.functional as F
from hydra.core.config_store import ConfigStore
from lightning.pytorch.loggers import CSVLogger
from omegaconf import DictConfig
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.contenders.digits_samples import samples
from hydrant.data import digits
from hydrant.models import MLP

ConfigStore.instance().store("sweep", {"seed": 0, "duration": 50, "lr": 1e-3})


class Module(lightning.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = MLP(input_shape=(1, 8, 8), num_classes=10, hidden=[256, 256], dropout=0.1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = F.cross_entropy(self.net(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val/accuracy", (self.net(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)


@hydra.main(version_base="1.3", config_path=None, config_name="sweep")
def main(config: DictConfig) -> None:
    lightning.seed_everything(config.seed, verbose=False)
    data = digits()
    training, held_out = (TensorDataset(*samples(source)) for source in (data.train, data.val))
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=config.duration, logger=CSVLogger("."), enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loaders = DataLoader(training, batch_size=64, shuffle=True), DataLoader(held_out, batch_size=512)
    trainer.fit(Module(config.lr), *loaders)


if __name__ == "__main__":
    main()
