"""A decoder-only transformer for language models."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegative, Positive, PositiveInt, RatioBelowOne
from hydrant.models import transformer
from hydrant.models.transformer import Block

Positions = Literal["rope", "learned", "none"]


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
        activation: transformer.Activation,
        norm: transformer.Norm,
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
        make_norm = partial(
            transformer.RMSNorm if norm == "rms" else partial(nn.LayerNorm, bias=False), eps=norm_eps
        )
        self.embedding = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(sequence_length, width) if positions == "learned" else None
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                width,
                make_norm,
                transformer.Attention(
                    width,
                    num_heads=num_heads,
                    num_kv_heads=num_kv_heads or num_heads,
                    head_dim=head_size,
                    scale=attention_scale,
                    qk_norm=make_norm if qk_norm else None,
                    dropout=dropout,
                ),
                transformer.FeedForward(width, hidden_size, activation),
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
            places = transformer.positions_in_documents(documents)
        else:
            tokens, documents = inputs, None
            places = torch.arange(tokens.shape[1], device=tokens.device)
        if (length := tokens.shape[1]) > self._sequence_length:
            message = f"is {self._sequence_length}, but a sequence has {length} tokens"
            raise ConfigError("model.sequence_length", message)
        turned = (
            None if self._rope_base is None else transformer.rotation(places, self._head_dim, self._rope_base)
        )
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
