"""Equations of modular arithmetic as sequences of tokens: all pairs of numbers, a part of them to train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import torch
from annotated_types import Interval

from hydrant import seeding
from hydrant.data.base import Data, check_shapes
from hydrant.data.in_memory import InMemorySource, tensor_reader
from hydrant.errors import ConfigError, check_known
from hydrant.extensions.language.token_data import IGNORED

Operation = Literal["add", "sub", "mul", "div"]

_MAX_MODULUS = 4096  # whose pairs take about 1 GB


def modular_arithmetic(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    vocab_size: int,
    sequence_length: int,
    operation: Operation,
    modulus: Annotated[int, Interval(ge=2, le=_MAX_MODULUS)],
    train_ratio: float,
    split_seed: int,
) -> Data:
    """Return the equations `a o b = c` modulo p of Power et al., "Grokking", 2022, section 2 and appendix A.1.

    A sample is the four tokens `a`, the operation, `b` and `=`; only the target of the last one counts, which is `c`.
    The numbers are the tokens below p, and two tokens follow. All pairs are used, for `div` those whose `b` is not 0.

    Args:
        vocab_size: the number of tokens, `modulus` + 2.
        sequence_length: 4 tokens.
        operation: add, sub, mul or div.
        modulus: p, 2 or more; for div a prime.
        train_ratio: of all pairs, to train on, above 0 and below 1. The others validate.
        split_seed: of the choice of these pairs.

    Raises:
        ConfigError: an argument is out of its range, or `vocab_size` does not fit `modulus`.
    """
    check_known("data.operation", "operation", operation, get_args(Operation))
    if operation == "div" and any(modulus % n == 0 for n in range(2, math.isqrt(modulus) + 1)):
        message = f"{modulus} is no prime, so not every number can be divided by"
        raise ConfigError("data.modulus", message, remedy="give a prime, or another operation")
    if vocab_size != modulus + 2:
        message = f"{vocab_size} tokens do not fit data.modulus={modulus}"
        raise ConfigError("data.vocab_size", message, remedy=f"write data.vocab_size={modulus + 2}")
    inputs, targets = _equations(operation, modulus)
    num_train = round(train_ratio * len(inputs)) if 0 < train_ratio < 1 else 0
    if not 0 < num_train < len(inputs):
        message = f"needs a ratio above 0 and below 1 that leaves pairs for both parts, not {train_ratio}"
        raise ConfigError("data.train_ratio", message)
    order = seeding.permutation(split_seed, 0, len(inputs))
    train, val = (
        InMemorySource(inputs[part], targets[part]) for part in (order[:num_train], order[num_train:])
    )
    if sequence_length != inputs.shape[1]:
        raise ConfigError("data.sequence_length", f"{sequence_length} is not 4, the tokens of an equation")
    data = Data(train, val, (sequence_length,), vocab_size, reader=tensor_reader())
    return check_shapes(data, input_shape, num_classes)


def _equations(operation: Operation, p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all equations and their targets, int64 (N, 4) each."""
    a, b = torch.cartesian_prod(torch.arange(p), torch.arange(int(operation == "div"), p)).unbind(1)
    if operation == "div":
        c = a * torch.tensor([pow(n, -1, p) for n in range(1, p)])[b - 1] % p
    else:
        c = {"add": a + b, "sub": a - b, "mul": a * b}[operation] % p
    inputs = torch.stack([a, torch.full_like(a, p), b, torch.full_like(a, p + 1)], dim=1)
    targets = torch.full_like(inputs, IGNORED)
    targets[:, -1] = c
    return inputs, targets
