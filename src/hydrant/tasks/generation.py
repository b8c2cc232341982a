"""Texts that a language model continues, token by token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hydrant.tasks.language_modeling import SeparateReadout


@torch.no_grad()
def generate(
    model: nn.Module,
    tokens: Tensor,
    num_tokens: int,
    *,
    max_context: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> Tensor:
    """Return a sequence of tokens, (L,) int64, with `num_tokens` more that the model predicts.

    Each token is drawn from the softmax of `logits / temperature` over the `top_k` most probable ones (Fan et al.,
    2018). The model reads at most the last `max_context` tokens, without a cache of its keys and values.

    Args:
        model: `tokens (B, L) -> logits (B, L, V)`.
        tokens: at least one, on the device of the model.
        temperature: 0 takes the most probable token.
        top_k: None: all tokens.
        generator: draws the tokens; on the host.
    """
    for _ in range(num_tokens):
        logits = _last_logits(model, tokens[None, -max_context:]).float().cpu()
        if temperature == 0:
            chosen = logits.argmax(keepdim=True)
        else:
            best, indices = logits.topk(min(top_k or len(logits), len(logits)))
            drawn = (best / temperature).softmax(-1).multinomial(1, generator=generator)
            chosen = indices[drawn]
        tokens = torch.cat([tokens, chosen.to(tokens.device)])
    return tokens


def _last_logits(model: Any, tokens: Tensor) -> Tensor:
    """Return the logits of the token after the last one, (V,)."""
    has_readout = isinstance(model, SeparateReadout)
    return model.logits(model(tokens, readout=False)[0, -1]) if has_readout else model(tokens)[0, -1]
