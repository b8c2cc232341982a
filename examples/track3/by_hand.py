"""The updates of experiment=track3 as one plain script without Hydrant, from the same first weights.

    python by_hand.py --init first.pt --files data/fineweb10B/fineweb_train_*.bin --updates 200

`first.pt` holds the `state_dict` of the model. A test compares the updates bit for bit in tiny shapes on a CPU. On a
GPU, compare its milliseconds of an update with those of the experiment, `perf/updates_per_second`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """The sizes of the model and of an update."""

    sequence_length: int = 1024
    batch_size: int = 512
    micro_batch_size: int = 64
    head_dim: int = 128
    num_updates: int = 3250  # of the schedule


def batches(files: Sequence[Path], shape: Shape, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets (B, L) of each update: the tokens of the files in a row, which have headers."""
    tokens = np.concatenate([np.fromfile(file, np.uint16, offset=1024) for file in files])
    size = shape.batch_size * shape.sequence_length
    for start in range(0, len(tokens) - size, size):
        part = torch.from_numpy(tokens[start : start + size + 1].astype(np.int64)).to(device)
        yield part[:-1].view(-1, shape.sequence_length), part[1:].view(-1, shape.sequence_length)


def forward(weights: Weights, tokens: Tensor, head_dim: int) -> Tensor:
    """Return the logits of the next token, (B, L, V)."""

    def norm(x: Tensor, name: str) -> Tensor:
        weight = weights[f"{name}.weight"]
        return F.rms_norm(x, weight.shape, weight.type_as(x))

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def turn(x: Tensor) -> Tensor:
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1).type_as(x)

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, head_dim))

    falling = (1 / 1024.0) ** torch.linspace(0, 1, head_dim // 4, device=tokens.device)
    falling = torch.cat([falling, falling.new_zeros(head_dim // 4)])
    angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32), falling)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    x = norm(F.embedding(tokens, weights["embedding.weight"]), "embedding_norm")
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    num_layers = sum(name.endswith(".attention.query.weight") for name in weights)
    for block in (f"blocks.{layer}" for layer in range(num_layers)):
        y = norm(x, f"{block}.attention_norm")
        query = turn(F.rms_norm(heads(linear(y, f"{block}.attention.query")), (head_dim,)))
        key = turn(F.rms_norm(heads(linear(y, f"{block}.attention.key")), (head_dim,)))
        value = heads(linear(y, f"{block}.attention.value"))
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True, scale=0.12
        )
        x = x + linear(mixed.transpose(1, 2).flatten(2), f"{block}.attention.output")
        y = linear(norm(x, f"{block}.feed_forward_norm"), f"{block}.feed_forward.up")
        x = x + linear(F.relu(y).square(), f"{block}.feed_forward.down")
    logits = linear(norm(x, "norm"), "readout").float()
    return 15.0 * logits * (logits.square() + 15.0**2).rsqrt()


def optimizers(weights: Weights) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for all other weights."""

    def chosen(*, blocks: bool, ndim: int) -> list[Tensor]:
        return [w for name, w in weights.items() if name.startswith("blocks.") == blocks and w.ndim == ndim]

    adam: dict[str, Any] = {"betas": (0.8, 0.95), "eps": 1.9e-16, "weight_decay": 0.001, "fused": True}
    groups = [
        {"params": [weights["embedding.weight"]], "lr": 0.7},
        {"params": [weights["readout.weight"]], "lr": 0.004},
        {"params": chosen(blocks=False, ndim=1) + chosen(blocks=True, ndim=1), "lr": 0.015},
    ]
    muon = torch.optim.Muon(
        chosen(blocks=True, ndim=2), lr=0.025, weight_decay=0.05, momentum=0.95, nesterov=True, ns_steps=12,
        ns_coefficients=(2.0, -1.5, 0.5), adjust_lr_fn="original",
    )  # fmt: skip
    return [muon, torch.optim.AdamW(groups, **adam)]


def train(
    weights: Weights, files: Sequence[Path], shape: Shape, num_updates: int, autocast: torch.dtype | None
) -> Iterator[float | Tensor]:
    """Train these weights in place, and yield the loss of each update."""
    device = weights["norm.weight"].device
    made = optimizers(weights)
    first_lrs = [[group["lr"] for group in optimizer.param_groups] for optimizer in made]
    length_of_decay = round(0.7 * shape.num_updates)

    def micro_batch_loss(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            logits = forward(weights, tokens, shape.head_dim)
        return (
            F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").sum() / targets.numel()
        )

    compute = torch.compile(micro_batch_loss) if device.type == "cuda" else micro_batch_loss
    num_micro_steps = shape.batch_size // shape.micro_batch_size
    for update, (inputs, targets) in zip(range(num_updates), batches(files, shape, device), strict=False):
        losses = list[Tensor]()
        for part in zip(
            inputs.split(shape.micro_batch_size), targets.split(shape.micro_batch_size), strict=True
        ):
            loss = compute(*part)
            (loss / num_micro_steps).backward()
            losses.append(loss.detach())
        ratio = 1.0 - max(0, update - (shape.num_updates - length_of_decay)) / length_of_decay
        for optimizer, lrs in zip(made, first_lrs, strict=True):
            for group, lr in zip(optimizer.param_groups, lrs, strict=True):
                group["lr"] = lr * ratio
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield torch.stack(losses).mean()


def main() -> None:
    """Train and print the loss and the milliseconds of an update."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--init", type=Path, required=True)
    parser.add_argument("--files", type=Path, nargs="+", required=True)
    parser.add_argument("--updates", type=int, default=200)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = torch.load(options.init, weights_only=True)
    weights = {name: weight.to(device).requires_grad_() for name, weight in loaded.items()}
    start = time.perf_counter()
    for update, loss in enumerate(
        train(weights, options.files, Shape(), options.updates, torch.bfloat16), start=1
    ):
        if update % 25 == 0:
            print(
                f"update {update}: loss {float(loss):.4f}, {1000 * (time.perf_counter() - start) / 25:.1f} ms"
            )
            start = time.perf_counter()


if __name__ == "__main__":
    main()
