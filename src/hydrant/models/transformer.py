"""The parts of a decoder-only transformer: norms, rotary positions, attention and the layers between.

The tokens of packed documents, several in a sequence, attend to those of their own document only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydrant.batch import widened


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
    return (documents[:, :, None] == documents[:, None, :]).tril()[:, None]


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


Norm = Literal["rms", "layer"]
Activation = Literal["swiglu", "gelu", "relu2"]


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm with the gain in the dtype of the input, so that the fused kernel is used under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.type_as(x), self.eps)


def relu2(x: Tensor) -> Tensor:
    """The square of ReLU; So et al., "Primer", 2021, section 4.1."""
    return F.relu(x).square()


def rotation(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles by which rotary embeddings turn pairs of numbers; Su et al., 2021.

    The source is "RoFormer", section 3.2. Each is (1, L, D / 2) or (B, 1, L, D / 2), float32 whatever the precision of
    the weights is, because the angles grow with the position.

    Args:
        positions: (L,), or (B, L) if they differ from sample to sample.
        head_dim: D, even.
        base: the angles of the pairs fall from 1 to about 1 / `base` per position.
    """
    pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * base ** (-pairs / head_dim)
    angles = angles.unsqueeze(-3)  # the same for all heads
    return angles.cos(), angles.sin()


def rotate(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (x[i], x[i + D / 2]) of vectors, (B, H, L, D), by the angles of their positions."""
    cos, sin = by
    first, second = widened(x).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Attention(nn.Module):
    """Causal self-attention by `scaled_dot_product_attention`; of packed documents, by `attend_in_documents`.

    Args:
        width: of the tokens.
        num_heads: of the queries.
        num_kv_heads: of the keys and values; each serves `num_heads / num_kv_heads` heads of queries (Ainslie et al.,
            "GQA", 2023).
        head_dim: D, of each head.
        scale: factor of the products of queries and keys.
        qk_norm: makes the norm of queries and keys for D (Henry et al., 2020); None: no norm.
        dropout: probability of dropping an attention weight.
        bias: the matrices have biases.
    """

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        qk_norm: Callable[[int], nn.Module] | None,
        dropout: float,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self._head_dim, self._scale, self._dropout = head_dim, scale, dropout
        self._is_gqa = num_kv_heads != num_heads
        self.query = nn.Linear(width, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(width, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(width, num_kv_heads * head_dim, bias=bias)
        self.query_norm = nn.Identity() if qk_norm is None else qk_norm(head_dim)
        self.key_norm = nn.Identity() if qk_norm is None else qk_norm(head_dim)
        self.output = nn.Linear(num_heads * head_dim, width, bias=bias)

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor] | None, documents: Tensor | None) -> Tensor:
        """`x` (B, L, width) -> (B, L, width). No token attends to later ones, or to those of other documents."""
        parts = (part(x) for part in (self.query, self.key, self.value))
        query, key, value = (part.unflatten(-1, (-1, self._head_dim)).transpose(1, 2) for part in parts)
        query, key = self.query_norm(query), self.key_norm(key)
        if turned is not None:
            query, key = rotate(query, turned), rotate(key, turned)
        query, key = query.type_as(value), key.type_as(value)
        dropout = self._dropout if self._dropout and self.training else 0.0
        if documents is None:
            mixed = F.scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=True,
                dropout_p=dropout,
                scale=self._scale,
                enable_gqa=self._is_gqa,
            )
        else:
            mixed = attend_in_documents(query, key, value, documents, dropout=dropout, scale=self._scale)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two layers around an activation; `swiglu` multiplies by a third one (Shazeer, 2020)."""

    def __init__(self, width: int, hidden: int, activation: Activation, *, bias: bool = False) -> None:
        super().__init__()
        self._activation = F.silu if activation == "swiglu" else F.gelu if activation == "gelu" else relu2
        self.gate = nn.Linear(width, hidden, bias=bias) if activation == "swiglu" else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`x` (B, L, width) -> (B, L, width)."""
        if self.gate is None:
            return self.down(self._activation(self.up(x)))
        return self.down(self._activation(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A layer: attention and a feed-forward network, each after a norm and added to the residual stream."""

    def __init__(
        self,
        width: int,
        norm: Callable[[int], nn.Module],
        attention: Attention,
        feed_forward: FeedForward,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(width), attention
        self.feed_forward_norm, self.feed_forward = norm(width), feed_forward
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, turned: tuple[Tensor, Tensor] | None, documents: Tensor | None) -> Tensor:
        """`x` (B, L, width) -> (B, L, width)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), turned, documents))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
