"""The model of the optimization benchmark of modded-nanogpt ("track 3"), whose architecture is fixed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import widened
from hydrant.errors import ConfigError
from hydrant.extensions.language.gpt import Attention, Block, FeedForward, RMSNorm

_SOFTCAP = 15.0
_ATTENTION_SCALE = 0.12
_ROPE_BASE = 1024.0


class Track3GPT(nn.Module):
    """A decoder-only transformer: norms before the layers and after the embedding, ReLU², and biases everywhere.

    Queries and keys are normalized without gains, and their products multiplied by 0.12. The first half of the pairs of
    each head are turned by angles that fall from 1 to 1 / 1024 per position; the other pairs are not turned. Logits z
    are bounded to `15 z / sqrt(z² + 15²)`. Embeddings start as N(0, 1), matrices as N(0, 0.33 / fan_in), gains at 1,
    and biases, the projections into the residual stream and the readout at 0. Under autocast, the residual stream has
    its precision.

    Source: github.com/KellerJordan/modded-nanogpt, records/track_3_optimization (August 2026), where it has 12 layers,
    a width of 768 and heads of 128.

    Args:
        vocab_size: number of tokens V.
        num_layers: number of blocks.
        width: size of a token in the residual stream.
        head_dim: size of a head, a multiple of 4 that divides `width`.

    Raises:
        ConfigError: heads do not fit.
    """

    def __init__(self, *, vocab_size: int, num_layers: int, width: int, head_dim: int) -> None:
        super().__init__()
        if not 0 < head_dim <= width or head_dim % 4 or width % head_dim:
            message = f"{head_dim} is no multiple of 4 that divides model.width={width}; give one, such as 64"
            raise ConfigError("model.head_dim", message)
        self.embedding = nn.Embedding(vocab_size, width)
        self.embedding_norm = RMSNorm(width)
        num_heads = width // head_dim
        norm = partial(nn.RMSNorm, elementwise_affine=False)  # of queries and keys
        self.blocks = nn.ModuleList(
            Block(
                width,
                RMSNorm,
                Attention(
                    width,
                    num_heads=num_heads,
                    num_kv_heads=num_heads,
                    head_dim=head_dim,
                    scale=_ATTENTION_SCALE,
                    qk_norm=norm,
                    dropout=0.0,
                    bias=True,
                ),
                FeedForward(width, 4 * width, "relu2", bias=True),
                dropout=0.0,
            )
            for _ in range(num_layers)
        )
        self.norm = RMSNorm(width)
        self.readout = nn.Linear(width, vocab_size)
        self.vocab_size, self._head_dim = vocab_size, head_dim
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=(0.33 / module.in_features) ** 0.5)
                nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.endswith(("output.weight", "down.weight", "readout.weight")):
                nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor | Mapping[str, Tensor], *, readout: bool = True) -> Tensor:
        """Return the logits of the next token, (B, L, V), of tokens (B, L).

        Args:
            inputs: the tokens.
            readout: False returns the hidden states, the input of `logits`, (B, L, width).

        Raises:
            ConfigError: the tokens are packed documents.
        """
        if isinstance(inputs, Mapping):
            raise ConfigError(
                "data.sampling", "this model does not divide documents", remedy="give contiguous or windows"
            )
        x = self.embedding_norm(self.embedding(inputs))
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        turned = _rotation(inputs.shape[1], self._head_dim, x.device)
        for block in self.blocks:
            x = block(x, turned, documents=None)
        x = self.norm(x)
        return self.logits(x) if readout else x

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the next token, (..., V) float32, for the hidden states of the blocks, (..., width)."""
        logits = widened(self.readout(hidden))
        return _SOFTCAP * logits * (logits.square() + _SOFTCAP**2).rsqrt()


def _rotation(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles that turn the pairs of each position; half of them are not turned."""
    falling = (1 / _ROPE_BASE) ** torch.linspace(0, 1, head_dim // 4, device=device)
    places = torch.arange(length, device=device, dtype=torch.float32)
    angles = -torch.outer(places, F.pad(falling, (0, head_dim // 4)))
    return angles.cos(), angles.sin()
