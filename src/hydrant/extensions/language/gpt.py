"""A decoder-only transformer for language models, with its parts: norms, rotary positions, attention, layers between.

The tokens of packed documents, several in a sequence, attend to those of their own document only.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from hydrant.batch import widened
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegative, Positive, PositiveInt, RatioBelowOne


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
    attn = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=scale, enable_gqa=num_groups > 1)
    cut: Any = documents
    is_flash = not dropout and _takes_flash_attention(query) and hasattr(cut, "bounds")
    # Compiled code must not ask for them: its graph would guard the answer.
    has_lengths = not torch.compiler.is_compiling() and hasattr(cut, "lengths")
    if dropout or not (is_flash or has_lengths):
        return attn(query, key, value, attn_mask=causal_document_mask(documents))
    query, key, value = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))  # (B L, H, D)
    if is_flash:
        mixed = _flash_attention(query, key, value, cut.bounds, documents.shape[1], scale)
    else:
        packed = (part.transpose(0, 1)[None].split(cut.lengths, 2) for part in (query, key, value))
        texts = zip(*packed, strict=True)
        mixed = torch.cat([attn(*text, is_causal=True) for text in texts], 2)[0].transpose(0, 1)
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
Positions = Literal["rope", "learned", "none"]


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


class GPT(nn.Module):
    """A decoder-only transformer with norms before its layers (Radford et al., "GPT-2", 2019), without biases.

    With P parameters outside the embeddings, the forward pass of a token takes `2 P + 4 L H D num_layers` FLOPs in a
    sequence of L tokens, with H heads of D numbers; a training update takes three times as many. The second term is
    the attention, counted with all L x L products, as torch's `FlopCounterMode` does. P includes the readout, also
    where it is tied to the embedding.

    Matrices start as N(0, 1 / fan_in); those that write into the residual stream are divided by `sqrt(2 num_layers)`
    (Radford et al., 2019, section 2.3), or start at 0 with `zero_init`, as then does an untied readout. Embeddings
    start as N(0, `embedding_std`²), and norms at 1.

    With `mup_base_width`, the model has the maximal update parametrization (Yang et al., "Tensor Programs V", 2022,
    table 8), so that a learning rate found at one width is also good at others. With m = width / mup_base_width, the
    logits are divided by m, an untied readout starts as N(0, 1 / mup_base_width), and the attention multiplies by
    sqrt(D0) / D instead of 1 / sqrt(D), where D0 is the size of a head at the base width. At the base width this
    changes nothing. The learning rates come from `mup`, which reads `mup_roles`.

    Args:
        vocab_size: number of tokens V.
        sequence_length: the most tokens of a sequence.
        num_layers: number of blocks.
        width: size of a token in the residual stream.
        num_heads: heads of the attention.
        num_kv_heads: heads of keys and values, which divide `num_heads`; None: as many.
        head_dim: size of a head, even with `rope`; None: width / num_heads.
        hidden_width: width of the feed-forward layers; None: 4 width, for `swiglu` 8/3 width. The latter is rounded up
            to a multiple of 8, because `swiglu` has three matrices instead of two.
        activation: `swiglu` (Shazeer, 2020), `gelu` (Hendrycks & Gimpel, 2016) or `relu2` (So et al., 2021).
        norm: `rms` (Zhang & Sennrich, 2019) or `layer` (Ba et al., 2016).
        norm_eps: added to the mean square before its root.
        qk_norm: normalize queries and keys (Henry et al., 2020).
        positions: `rope` (Su et al., 2021), `learned` embeddings, or `none`.
        rope_base: the base of the angles of `rope`.
        tie_embeddings: True: the embedding is also the readout (Press & Wolf, 2017).
        logit_softcap: bound the logits to plus and minus this value by a tanh (Gemma 2, 2024, section 2); None: no
            bound.
        zero_init: projections into the residual stream, and an untied readout, start at 0.
        embedding_std: standard deviation of the first embeddings.
        dropout: probability of dropping an embedding, an attention weight and a number that is added to the residual
            stream.
        activation_checkpointing: True: less memory; the backward pass computes the blocks again (Chen et al., 2016).
        mup_base_width: the width at which `lr` was tuned; None: the standard parametrization.
        mup_base_head_dim: the size of a head at that width; None: that of a model with as many heads.

    Raises:
        ConfigError: a size does not fit another one.
    """

    def __init__(
        self,
        *,
        vocab_size: PositiveInt,
        sequence_length: PositiveInt,
        num_layers: PositiveInt,
        width: PositiveInt,
        num_heads: PositiveInt,
        num_kv_heads: PositiveInt | None,
        head_dim: PositiveInt | None,
        hidden_width: PositiveInt | None,
        activation: Activation,
        norm: Norm,
        norm_eps: Positive,
        qk_norm: bool,
        positions: Positions,
        rope_base: Positive,
        tie_embeddings: bool,
        logit_softcap: Positive | None,
        zero_init: bool,
        embedding_std: NotNegative,
        dropout: RatioBelowOne,
        activation_checkpointing: bool,
        mup_base_width: PositiveInt | None,
        mup_base_head_dim: PositiveInt | None,
    ) -> None:
        super().__init__()
        if mup_base_head_dim is not None and mup_base_width is None:
            remedy = "give model.mup_base_width too, or leave it out"
            raise ConfigError("model.mup_base_head_dim", "belongs to muP", remedy=remedy)
        if head_dim is None and width % num_heads:
            message = f"{num_heads} heads do not divide model.width={width}"
            raise ConfigError("model.num_heads", message, remedy="choose another number, or give head_dim")
        head_size = head_dim or width // num_heads
        hidden_size = hidden_width or (math.ceil(width / 3) * 8 if activation == "swiglu" else 4 * width)
        self.vocab_size, self._sequence_length, self._head_dim = vocab_size, sequence_length, head_size
        self._rope_base = rope_base if positions == "rope" else None
        self._softcap, self._checkpoints = logit_softcap, activation_checkpointing
        if mup_base_width is None:
            self._width_ratio, self._head_ratio, attention_scale = 1.0, 1.0, head_size**-0.5
        else:
            self._width_ratio = width / mup_base_width
            self._head_ratio = head_size / (mup_base_head_dim or head_size / self._width_ratio)
            attention_scale = (head_size * self._head_ratio) ** -0.5
        self._is_mup = mup_base_width is not None
        make_norm = partial(RMSNorm if norm == "rms" else partial(nn.LayerNorm, bias=False), eps=norm_eps)
        self.embedding = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(sequence_length, width) if positions == "learned" else None
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                width,
                make_norm,
                Attention(
                    width,
                    num_heads=num_heads,
                    num_kv_heads=num_kv_heads or num_heads,
                    head_dim=head_size,
                    scale=attention_scale,
                    qk_norm=make_norm if qk_norm else None,
                    dropout=dropout,
                ),
                FeedForward(width, hidden_size, activation),
                dropout,
            )
            for _ in range(num_layers)
        )
        self.norm = make_norm(width)
        self.readout = None if tie_embeddings else nn.Linear(width, vocab_size, bias=False)
        self._initialize(embedding_std, zero_init)

    def forward(self, inputs: Tensor | Mapping[str, Tensor], *, readout: bool = True) -> Tensor:
        """Return the logits of the next token, (B, L, V).

        Args:
            inputs: tokens, (B, L) int64; or `tokens` and `documents`, the number of the document of each token, both
                (B, L) int64. A token attends to those of its own document, where the positions begin at 0.
            readout: False returns the hidden states, the input of `logits`, (B, L, width).

        Raises:
            ConfigError: the sequence is too long.
        """
        if isinstance(inputs, Mapping):
            tokens, documents = inputs["tokens"], inputs["documents"]
            places = positions_in_documents(documents)
        else:
            tokens, documents = inputs, None
            places = torch.arange(tokens.shape[1], device=tokens.device)
        if (length := tokens.shape[1]) > self._sequence_length:
            message = f"is {self._sequence_length}, but a sequence has {length} tokens"
            raise ConfigError("model.sequence_length", message)
        turned = None if self._rope_base is None else rotation(places, self._head_dim, self._rope_base)
        x = self.embedding(tokens)
        x = self.dropout(x if self.positions is None else x + self.positions(places))
        for block in self.blocks:
            if self._checkpoints and torch.is_grad_enabled():
                x = cast("Tensor", checkpoint(block, x, turned, documents, use_reentrant=False))
            else:
                x = block(x, turned, documents)
        x = self.norm(x)
        return self.logits(x) if readout else x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the next token, (..., V), for the hidden states of the blocks, (..., width)."""
        logits = F.linear(hidden, self.embedding.weight) if self.readout is None else self.readout(hidden)
        if self._width_ratio != 1:
            logits = logits / self._width_ratio
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    def _initialize(self, embedding_std: float, zero_init: bool) -> None:
        """Draw the first weights."""
        blocks = cast("list[Block]", list(self.blocks))
        for block in blocks:
            for module in block.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=module.in_features**-0.5)
            for projection in (block.attention.output, block.feed_forward.down):
                with torch.no_grad():
                    projection.weight.mul_(0.0 if zero_init else (2 * len(blocks)) ** -0.5)
        if self.readout is not None:
            base_width = self.readout.in_features / self._width_ratio
            nn.init.normal_(self.readout.weight, std=0.0 if zero_init else base_width**-0.5)
        nn.init.normal_(self.embedding.weight, std=embedding_std)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=embedding_std)

    def mup_roles(self) -> dict[str, tuple[str, float]]:
        """Return the role of each parameter and by how much wider it is than at the base width; {} without muP.

        A role says which dimensions of a weight grow with the width: both (`hidden`), only the output dimension
        (`input`, also vectors), or only the input dimension (`output`).
        """
        if not self._is_mup:
            return {}
        return {name: self._mup_role(name, p) for name, p in self.named_parameters()}

    @staticmethod
    def group_matcher(coarse: bool = False) -> dict[str, Any]:
        """Return the parameters of each layer in the form of timm's models, for `param_groups.layer_decay`."""
        del coarse  # a block is the smallest layer
        return {
            "stem": r"^(embedding|positions)",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def _mup_role(self, name: str, parameter: nn.Parameter) -> tuple[str, float]:
        if name.startswith("readout."):
            return "output", self._width_ratio
        if name.startswith("blocks.") and parameter.ndim == 2:
            return "hidden", self._width_ratio
        is_of_heads = name.endswith(("query_norm.weight", "key_norm.weight"))
        return "input", self._head_ratio if is_of_heads else self._width_ratio
