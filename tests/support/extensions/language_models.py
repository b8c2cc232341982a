"""Small language models, and text to train them on."""

from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from hydrant.config.groups import option_path
from hydrant.extensions.language import GPT

VOCAB_SIZE, LENGTH = 32, 16

SIZES = ("model=gpt", f"model.vocab_size={VOCAB_SIZE}", f"model.sequence_length={LENGTH}", "model.num_layers=2",
         "model.width=16", "model.num_heads=2")  # fmt: skip
TINY = ("data=tensors", "data.train=tokens.pt", "data.val=tokens.pt", "task=language_modeling", *SIZES,
        "tracker=local", "global_batch_size=8", "eval_batch_size=6", "duration=4", "log_every=1", "eval_every=2",
        "save_every=2")  # fmt: skip
"""Overrides of a small run on the tokens that `save_tokens` writes."""


def gpt(**changed: Any) -> GPT:
    """Return a small model: the arguments of its YAML but for the sizes and what is changed."""
    node: Any = OmegaConf.load(option_path("model", "gpt"))
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "sequence_length": LENGTH,
        "num_layers": 2,
        "width": 16,
        "num_heads": 2,
    }
    node.update(sizes | changed)
    arguments: Any = OmegaConf.to_container(node, resolve=True)
    del arguments["_target_"]
    return GPT(**arguments)


def save_tokens(num_samples: int = 32, ignored: float = 0.0) -> None:
    """Write `tokens.pt` into the current folder: sequences that can be learned, with a part of the targets ignored."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(VOCAB_SIZE, (num_samples, 1), generator=generator)
    sequences = (first + 3 * torch.arange(LENGTH + 1)) % VOCAB_SIZE
    targets = sequences[:, 1:].clone()
    targets[torch.rand(targets.shape, generator=generator) < ignored] = -100
    torch.save({"inputs": sequences[:, :-1].contiguous(), "targets": targets}, Path("tokens.pt"))
