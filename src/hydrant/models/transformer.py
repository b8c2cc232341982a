"""The parts of a decoder-only transformer: norms, rotary positions, attention and the layers between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import widened
from hydrant.models.documents import attend_in_documents

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
