"""Packed documents: several in a sequence, whose tokens attend to those of their own document only."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def positions_in_documents(documents: Tensor) -> Tensor:
    """Return the position of each token in its document, of the same shape as `documents`.

    Args:
        documents: (B, L), the number of the document of each token. Tokens of a document are next to each other.

    >>> positions_in_documents(torch.tensor([[0, 0, 1, 1, 1, 2]]))
    tensor([[0, 1, 0, 1, 2, 0]])
    """
    places = torch.arange(documents.shape[1], device=documents.device)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return places - torch.where(begins, places, 0).cummax(dim=1).values


def causal_document_mask(documents: Tensor) -> Tensor:
    """Return which tokens each token attends to, (B, 1, L, L) bool: itself and those before it in its document.

    >>> causal_document_mask(torch.tensor([[0, 1, 1]]))[0, 0].int()
    tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    is_same = documents[:, :, None] == documents[:, None, :]
    return is_same.tril()[:, None]


def attend_in_documents(
    query: Tensor, key: Tensor, value: Tensor, documents: Tensor, *, dropout: float, scale: float
) -> Tensor:
    """Causal attention within documents: queries (B, H, L, D), keys and values (B, KH, L, D) -> (B, H, L, D).

    `data=tokens` cuts the documents on the host, and gives the tensor `documents` two attributes that say where:
    `lengths`, which are numbers of the host, and `bounds`. In 16 bits on CUDA, `bounds` go to flash attention. Else
    each document is attended to on its own. Both need memory in proportion to L. A mask needs it in proportion to L².
    It is for documents without these attributes, for compiled code that flash attention does not serve, because
    `lengths` would be constants of its graph, and for dropout, which then draws the same in eager and compiled code.

    Args:
        documents: (B, L), the number of the document of each token.
        dropout: probability of dropping an attention weight.
        scale: factor of the products of queries and keys.
    """
    num_groups = query.shape[1] // key.shape[1]
    attend = partial(
        F.scaled_dot_product_attention, dropout_p=dropout, scale=scale, enable_gqa=num_groups > 1
    )
    cut: Any = documents
    is_flash = not dropout and _takes_flash_attention(query) and hasattr(cut, "bounds")
    # Compiled code must not ask for them: its graph would guard the answer.
    has_lengths = not torch.compiler.is_compiling() and hasattr(cut, "lengths")
    if dropout or not (is_flash or has_lengths):
        return attend(query, key, value, attn_mask=causal_document_mask(documents))
    query, key, value = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))  # (B L, H, D)
    if is_flash:
        mixed = _flash_attention(query, key, value, cut.bounds, documents.shape[1], scale)
    else:
        packed = (part.transpose(0, 1)[None].split(cut.lengths, 2) for part in (query, key, value))
        texts = zip(*packed, strict=True)
        mixed = torch.cat([attend(*text, is_causal=True) for text in texts], 2)[0].transpose(0, 1)
    return mixed.unflatten(0, documents.shape).transpose(1, 2)


def _takes_flash_attention(query: Tensor) -> bool:
    """Return whether torch's flash attention for sequences of several lengths takes such tensors."""
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and _has_flash_attention(query.device.index)
    )


def _constant(function: Any) -> Any:
    """Let graphs take what a function returns as a constant.

    `torch.compiler.assume_constant_result` does only this, but imports torch._dynamo, which takes a second (2026-11).
    """
    function._dynamo_marked_constant = True
    return function


@_constant
def _has_flash_attention(gpu: int) -> bool:
    return torch.backends.cuda.flash_sdp_enabled() and torch.cuda.get_device_capability(gpu) >= (8, 0)


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, scale: float
) -> Tensor:
    """Causal attention within sequences that lie one after the other, (tokens, heads, D).

    Args:
        bounds: the first token of each sequence, and the number of all tokens. Equal ones are empty sequences.
        longest: no sequence is longer.
        scale: factor of the products of queries and keys.
    """
    from torch.nn.attention.varlen import varlen_attn  # imports Triton, which the CPU does not need

    if (num_groups := query.shape[1] // key.shape[1]) > 1:
        key, value = (part.repeat_interleave(num_groups, 1) for part in (key, value))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # cuDNN plans anew for every number of sequences
        mixed = varlen_attn(
            query, key, value, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0)
        )
    return cast("Tensor", mixed)
