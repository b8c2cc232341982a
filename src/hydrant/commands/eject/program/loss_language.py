"""Loss and metrics of the next token."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hydrant.commands.eject.program.settings import *


def token_losses(model: Any, inputs: Any, targets: Tensor) -> Tensor:
    """Return the cross entropy of each token with its target, in nats."""
    if REDUCES_PARTS:
        # The logits of a part of the tokens at a time, and again in the backward pass: saves memory.
        hidden = model(inputs, readout=False).flatten(0, -2)
        num_parts = max(math.ceil(len(hidden) * VOCAB_SIZE / MAX_LOGITS), 1)
        pairs = zip(hidden.chunk(num_parts), targets.flatten().chunk(num_parts), strict=True)
        if num_parts > 1 and torch.is_grad_enabled():
            losses = [checkpoint(losses_of_part, model, *pair, use_reentrant=False) for pair in pairs]
        else:
            losses = [losses_of_part(model, *pair) for pair in pairs]
        if Z_LOSS:  # each token has two losses
            return torch.cat(losses, dim=1).view(2, *targets.shape)
        return torch.cat(losses).view_as(targets)
    logits = model(inputs).float().flatten(0, -2)
    if Z_LOSS:  # each token has two losses
        return losses_of_logits(logits, targets.flatten()).view(2, *targets.shape)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none").view_as(targets)


def losses_of_part(model: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the losses of tokens for what the last block of the model gives."""
    if Z_LOSS:
        return losses_of_logits(model.logits(hidden).float(), targets)
    return F.cross_entropy(model.logits(hidden).float(), targets, ignore_index=IGNORED, reduction="none")


def losses_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """Return two losses of each token, (2, n): the cross entropy, and the squared log of the softmax's denominator."""
    entropies = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
    return torch.stack([entropies, logits.logsumexp(-1).square() * (targets != IGNORED)])


def loss_and_metrics(losses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss of the tokens that count, shape (), and its METRICS, float64."""
    if Z_LOSS:
        entropies, squares = losses
        num_tokens = (targets != IGNORED).sum().clamp(min=1)
        parts = entropies.sum() / num_tokens, Z_LOSS * squares.sum() / num_tokens
        loss = parts[0] + parts[1]
        return loss, torch.stack([loss, *parts]).detach().double()
    loss = losses.sum() / (targets != IGNORED).sum().clamp(min=1)
    return loss, loss.detach().double().view(1)


@functools.cache
def token_bytes() -> Tensor:
    """Return how many bytes of text each token stands for; 0 for tokens that are no text."""
    known = json.loads((Path(ROOT) / "tokens.json").read_text())["token_bytes"]
    return torch.tensor(known + [0] * (VOCAB_SIZE - len(known)), device=DEVICE)


def text_sums(losses: Tensor, targets: Tensor) -> Tensor:
    """Return the sums over a batch that `text_metrics` needs."""
    if Z_LOSS:
        losses = losses[0]  # the cross entropies
    counts = (targets >= 0) & (targets != IGNORED)
    sums = torch.stack([losses.double().sum(), counts.sum()])
    if HAS_BYTES:
        num_bytes = token_bytes()[targets.clamp(min=0)] * counts
        sums = torch.cat([sums, torch.stack([(losses.double() * (num_bytes > 0)).sum(), num_bytes.sum()])])
    if HAS_VOCABULARY:
        return torch.cat([sums, torch.bincount(targets[counts], minlength=VOCAB_SIZE)])
    return sums


def text_metrics(sums: Tensor) -> dict[str, float]:
    """Return metrics of texts: `unigram_entropy` is the loss of a model that knows only how frequent the tokens are."""
    values = {"perplexity": (sums[0] / sums[1]).exp()}
    if HAS_BYTES:
        values["bits_per_byte"] = sums[2] / math.log(2) / sums[3]
    if HAS_VOCABULARY:
        ratios = sums[-VOCAB_SIZE:] / sums[-VOCAB_SIZE:].sum()
        values["unigram_entropy"] = torch.special.entr(ratios).sum()
    return {name: value.item() for name, value in values.items()}
