"""Fused scaled dot products by the CPU's own fused kernel, and with dropout by plain operations.

query: (batch, heads, length, width); key and value: (batch, key heads, key length, width). Of packed sequences:
(tokens, heads, width).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_aten = torch.ops.aten
_ROWS = 32
"""The efficient kernel stores its sums for a multiple of so many queries."""


class _Options(NamedTuple):
    """What a forward and its backward have in common. A bias is added to the scores."""

    dropout: float
    is_causal: bool
    scale: float | None
    bias: Tensor | None = None


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | int, ...]:
    """`aten::_scaled_dot_product_flash_attention`."""
    options = _Options(dropout_p, is_causal, scale)
    output, sums, seed = _forward(query, key, value, options)
    lengths = torch.empty(0, dtype=torch.int32)
    state = torch.stack([seed, torch.zeros_like(seed)]).to(torch.uint64)
    unused = torch.empty((), dtype=torch.uint64)
    output = _as_in(query, output)
    return output, sums, lengths, lengths, query.size(2), key.size(2), state, unused, query.new_empty(0)


def flash_backward(grad: Tensor, *arguments: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    """`aten::_scaled_dot_product_flash_attention_backward`."""
    *inputs, output, sums, _, _, _, _, dropout_p, is_causal, state, _ = arguments
    options = _Options(dropout_p, is_causal, scale)
    return tuple(
        map(_as_in, inputs, _backward(grad, tuple(inputs), output, sums, options, state.flatten()[:1]))
    )


def efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """`aten::_scaled_dot_product_efficient_attention`."""
    options = _Options(dropout_p, is_causal, scale, attn_bias)
    output, sums, seed = _forward(query, key, value, options)
    padding = -query.size(2) % _ROWS
    sums = torch.nn.functional.pad(sums, (0, padding)) if compute_log_sumexp else sums[..., :0]
    return _by_tokens(output), sums.contiguous(), seed, torch.zeros_like(seed)


def efficient_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    output: Tensor,
    sums: Tensor,
    seed: Tensor,
    _offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """`aten::_scaled_dot_product_efficient_attention_backward`."""
    options = _Options(dropout_p, is_causal, scale, attn_bias)
    # The check of the kernel; the forward pass may have kept none.
    if sums.size(1) > 1 and sums.stride(1) % 8:
        raise RuntimeError("LSE is not correctly aligned (strideH)")
    sums = sums[..., : query.size(2)].contiguous()
    inputs = (query, key, value)
    if grad_input_mask[3]:
        *grads, of_bias = _plain_backward(grad, inputs, options, seed)
        return *map(_by_tokens, grads), of_bias  # type: ignore[arg-type]
    return *map(_by_tokens, _backward(grad, inputs, output, sums, options, seed)), None


def packed(*arguments: Any, scale: float | None = None, **windows: Any) -> tuple[Tensor, ...]:
    """`aten::_flash_attention_forward` of sequences one after the other, (tokens, heads, width) each."""
    query, key, value, bounds, key_bounds, _, _, dropout_p, is_causal, _ = arguments
    assert bounds.dtype == torch.int32, "flash attention takes the bounds of sequences as int32"
    assert torch.equal(bounds, key_bounds)
    assert not dropout_p
    options = _Options(0.0, is_causal, scale)
    results = [_forward(*map(_batched, parts), options) for parts in _cut(bounds, query, key, value)]
    output = torch.cat([output[0].transpose(0, 1) for output, _, _ in results])
    state = torch.zeros(2, dtype=torch.uint64)
    return output, torch.cat([sums[0] for _, sums, _ in results], 1), state, state[0], query.new_empty(0)


def packed_backward(*arguments: Any, scale: float | None = None, **windows: Any) -> tuple[Tensor, ...]:
    """`aten::_flash_attention_backward` of sequences one after the other."""
    grad, query, key, value, output, sums, bounds, _, _, _, _, is_causal, _, _ = arguments
    options, seed = _Options(0.0, is_causal, scale), torch.zeros((), dtype=torch.long)
    grads = [
        _backward(
            _batched(grad), tuple(map(_batched, inputs)), _batched(output), sums.mT[None], options, seed
        )
        for grad, *inputs, output, sums in _cut(bounds, grad, query, key, value, output, sums.mT)
    ]
    return tuple(torch.cat([part[0].transpose(0, 1) for part in parts]) for parts in zip(*grads, strict=True))


def _cut(bounds: Tensor, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors of each sequence that is not empty."""
    lengths = bounds.diff().tolist()
    return (parts for parts in zip(*(x.split(lengths) for x in tensors), strict=True) if len(parts[0]))


def _batched(tokens: Tensor) -> Tensor:
    """Return a sequence (tokens, heads, width) as a batch of one, (1, heads, tokens, width)."""
    return tokens.transpose(0, 1)[None]


def _forward(query: Tensor, key: Tensor, value: Tensor, options: _Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the logarithms of the sums of exponentials, and a seed."""
    key, value = _for_each_head(key, query), _for_each_head(value, query)
    if options.dropout == 0:
        output, sums = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, options.is_causal, attn_mask=options.bias, scale=options.scale
        )
        return output, sums, torch.zeros((), dtype=torch.long)
    seed = torch.randint(2**62, ())
    scores = _scores(query, key, options)
    kept = scores.softmax(-1) * _dropout_factors(scores, options.dropout, seed)
    return (kept @ value.float()).to(query.dtype), scores.logsumexp(-1), seed


def _backward(
    grad: Tensor, inputs: tuple[Tensor, ...], output: Tensor, sums: Tensor, options: _Options, seed: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key and value."""
    if options.dropout:
        return _plain_backward(grad, inputs, options, seed)[:3]  # type: ignore[return-value]
    query, key, value = inputs
    grads = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, _for_each_head(key, query), _for_each_head(value, query), output, sums, 0.0, options.is_causal,
        attn_mask=options.bias, scale=options.scale,
    )  # fmt: skip
    return grads[0], _of_key_heads(grads[1], key), _of_key_heads(grads[2], value)


def _plain_backward(
    grad: Tensor, inputs: tuple[Tensor, ...], options: _Options, seed: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, value and bias."""
    query, key, value = inputs
    keys, values = _for_each_head(key, query).float(), _for_each_head(value, query).float()
    scores = _scores(query, keys, options)
    weights = scores.softmax(-1)
    factors = _dropout_factors(scores, options.dropout, seed)
    of_values = (weights * factors).transpose(-2, -1) @ grad.float()
    of_weights = (grad.float() @ values.transpose(-2, -1)) * factors
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    scale = _scale(query, options)
    of_query, of_keys = scale * of_scores @ keys, scale * of_scores.transpose(-2, -1) @ query.float()
    of_bias = None if options.bias is None else of_scores.sum_to_size(options.bias.shape).to(options.bias)
    of_inputs = (
        of_query.to(query),
        _of_key_heads(of_keys, key).to(key),
        _of_key_heads(of_values, value).to(value),
    )
    return *of_inputs, of_bias


def _by_tokens(heads: Tensor) -> Tensor:
    """Return (batch, heads, length, width) with all heads of a token side by side in memory: the efficient kernel."""
    return heads.transpose(1, 2).contiguous().transpose(1, 2)


def _as_in(given: Tensor, result: Tensor) -> Tensor:
    """Return a result in the order in memory of an argument: the flash kernel."""
    return torch.empty_like(given.transpose(1, 2)).transpose(1, 2).copy_(result)


def _scores(query: Tensor, key: Tensor, options: _Options) -> Tensor:
    """Return the logits of the attention, in float32."""
    scores = _scale(query, options) * query.float() @ key.float().transpose(-2, -1)
    if options.bias is not None:
        scores = scores + options.bias
    if options.is_causal:
        is_seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~is_seen, -math.inf)
    return scores


def _scale(query: Tensor, options: _Options) -> float:
    return query.size(-1) ** -0.5 if options.scale is None else options.scale


def _dropout_factors(scores: Tensor, dropout: float, seed: Tensor) -> Tensor:
    """Return 0 or 1 / (1 - dropout) for each weight: a function of the seed."""
    if dropout == 0:
        return torch.ones_like(scores)
    generator = torch.Generator().manual_seed(int(seed))
    return (torch.rand(scores.shape, generator=generator) >= dropout) / (1 - dropout)


def _for_each_head(keys: Tensor, query: Tensor) -> Tensor:
    """Repeat keys or values that several heads of queries share."""
    return keys if keys.size(1) == query.size(1) else keys.repeat_interleave(query.size(1) // keys.size(1), 1)


def _of_key_heads(grad: Tensor, keys: Tensor) -> Tensor:
    """Return the gradient of what `_for_each_head` was given."""
    return grad if grad.size(1) == keys.size(1) else grad.unflatten(1, (keys.size(1), -1)).sum(2)


ATTENTION: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": flash,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_flash_attention_forward": packed,
    "_flash_attention_backward": packed_backward,
    "_scaled_dot_product_efficient_attention": efficient,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
}
"""By the name of the operation."""
