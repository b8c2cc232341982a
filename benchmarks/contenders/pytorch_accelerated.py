"""pytorch-accelerated's Trainer without callbacks."""

from __future__ import annotations

from typing import Any

from pytorch_accelerated import Trainer
from torch import nn

from benchmarks.contenders.work import TURNS, batches, digest, network, optimizer


class TurnsTrainer(Trainer):
    def create_train_dataloader(self, *_: Any, **__: Any) -> Any:
        return Once()

    def _prepare_model_optimizer_and_dataloaders(self) -> None:
        self.model, self.optimizer = self._accelerator.prepare(self.model, self.optimizer)


class Once:
    """An iterable over all batches of the training, which can be iterated once."""

    dataset: Any = ()

    def __iter__(self) -> Any:
        return TURNS.over(batches())

    def __len__(self) -> int:
        return TURNS.num_updates


def main() -> None:
    model = network()
    trainer = TurnsTrainer(model, nn.CrossEntropyLoss(), optimizer(model.parameters()), callbacks=())
    trainer.train(train_dataset=[0] * 8, num_epochs=1, per_device_batch_size=8)
    TURNS.end(digest=digest(model))


main()
