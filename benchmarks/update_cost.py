"""The update of each optimizer, compared with that of AdamW.

The weights are those of a GPT with 2 layers of width 256 (1.6 million numbers), the gradients are random, and each
optimizer has its default settings. A block has ten updates, so that it contains the updates which some optimizers
make of a preconditioner every ten updates. All optimizers run in one process on one thread and take turns by blocks.
The time is that of the processor, so other processes count little; the forward and backward pass is not counted.
`kron` is not compiled here. The guide on optimizers shows the ratios.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

import hydrant
from benchmarks.figures import Figure
from benchmarks.statistics import paired
from benchmarks.turns import in_turn
from hydrant.config.instantiate import instantiate, instantiate_node
from hydrant.optimizers.kernels import OptimizerStep, with_fastest_kernel

OPTIMIZERS = (
    "sgd", "adam", "adamw", "nadam", "radam", "adamax", "adagrad", "rmsprop", "asgd", "adadelta", "adafactor", "lion",
    "lamb", "ademamix", "mars", "prodigy", "schedule_free_adamw", "muon", "torch_muon", "normuon", "scion", "soap",
    "shampoo", "kron",
)  # fmt: skip
_NUM_UPDATES = 10


def measure(*, quick: bool) -> list[Figure]:
    """Return the ratio of each optimizer's update to AdamW's."""
    torch.set_num_threads(1)
    size = (1, 32) if quick else (2, 256)
    names = ("adamw", "muon") if quick else OPTIMIZERS
    updates = {name: _updates(name, *size) for name in names}
    for update in updates.values():
        update()  # makes the states
    seconds = in_turn(updates, 2 if quick else 4)
    return [
        Figure(
            f"{name} to adamw", paired(seconds[name], seconds["adamw"], lambda one, other: one / other), "x"
        )
        for name in names
        if name != "adamw"
    ]


def _updates(name: str, num_layers: int, width: int) -> Callable[[], float]:
    """Return a function that makes a block of updates and returns its seconds."""
    composed = hydrant.compose(
        [f"optimizer={name}", "data=tokens", "model=gpt", "task=language_modeling", f"model.num_layers={num_layers}",
         f"model.width={width}", "model.num_heads=4", "data.vocab_size=256"]
    )  # fmt: skip
    config: Any = OmegaConf.to_container(OmegaConf.create(str(composed)))
    torch.manual_seed(0)
    model: nn.Module = instantiate(config, "model")
    parameters = list(model.parameters())
    step = OptimizerStep(with_fastest_kernel(instantiate_node(config["optimizer"]))([{"params": parameters}]))
    stance = partial(torch.compiler.set_stance, "force_eager") if name == "kron" else contextlib.nullcontext

    def block() -> float:
        seconds = 0.0
        for _ in range(_NUM_UPDATES):
            for p in parameters:
                p.grad = torch.randn_like(p) / 10
            with stance():
                start = time.process_time()
                step()
                seconds += time.process_time() - start
        return seconds

    return block
