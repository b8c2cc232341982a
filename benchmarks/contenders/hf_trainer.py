"""Hugging Face's Trainer without reports and callbacks."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from benchmarks.contenders.work import TURNS, batches, digest, network, optimizer


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, inputs: Any, labels: Any) -> Any:
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Once:
    """An iterable over all batches of the training, which can be iterated once."""

    def __iter__(self) -> Any:
        return ({"inputs": inputs, "labels": targets} for inputs, targets in TURNS.over(batches()))

    def __len__(self) -> int:
        return TURNS.num_updates


class TurnsTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        return Once()


def main() -> None:
    model = Wrapped()
    adamw = optimizer(model.parameters())
    arguments = TrainingArguments(
        output_dir="hf", max_steps=TURNS.num_updates, per_device_train_batch_size=8, logging_strategy="no",
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, max_grad_norm=0.0,
        lr_scheduler_type="constant", logging_nan_inf_filter=False, average_tokens_across_devices=False,
    )  # fmt: skip
    trainer = TurnsTrainer(model, arguments, train_dataset=[0] * 8, optimizers=(adamw, None))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    TURNS.end(digest=digest(model.net))


main()
