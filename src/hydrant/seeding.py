"""Random streams as pure functions of `(seed, position)`. Nothing here is stepped, so nothing has to be replayed.

Scalars are mixed by SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014). `uniform` applies the same mixer to a whole tensor, on whatever device it lives, so that a
sample's augmentation depends on the sample alone and not on its neighbours, workers or ranks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

# Streams that must not share numbers though seed and position agree.
MODEL, ORDER, UPDATE, SAMPLE, SYNTHETIC, MIXING, EVALUATION = range(1, 8)


def mix(*parts: int) -> int:
    """A 64-bit hash of integers: equal for equal parts, unrelated for any others.

    >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 0)
    (True, False)
    """
    state = 0
    for part in parts:
        state = (state + _GOLDEN + (part & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * _MIX[0]) & _MASK
        state = ((state ^ (state >> 27)) * _MIX[1]) & _MASK
        state ^= state >> 31
    return state


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical, as for an unsigned number


def uniform(seed: int, positions: Tensor, lane: int) -> Tensor:
    """One uniform float32 in [0, 1) per position (int64, any shape); `lane` tells independent draws apart.

    >>> uniform(0, torch.tensor([5, 6]), 0)[1] == uniform(0, torch.tensor([6]), 0)[0]
    tensor(True)
    """
    x = positions * _signed(_GOLDEN) + _signed(mix(seed, lane))
    x = (x ^ _shift_right(x, 30)) * _signed(_MIX[0])
    x = (x ^ _shift_right(x, 27)) * _signed(_MIX[1])
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 40).to(torch.float32) * 2.0**-24


def permutation(seed: int, epoch: int, num_samples: int) -> Tensor:
    """The order of the samples in an epoch, int64, shape (num_samples,), on the host."""
    generator = torch.Generator().manual_seed(mix(seed, ORDER, epoch))
    return torch.randperm(num_samples, generator=generator)


def seed_process(seed: int, *stream: int) -> None:
    """Seed Python, NumPy and torch (every device) from `(seed, stream)`."""
    value = mix(seed, *stream)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.manual_seed(value)


def seed_micro_step(seed: int, num_updates: int, micro_batch_idx: int, device: torch.device) -> None:
    """Seed the torch streams that dropout draws from, for one micro-batch of one update.

    `micro_batch_idx` counts over all ranks, so two ranks of one micro-batch draw what one rank of two does.
    """
    # One step of the generator an update, as in SplitMix64: no two updates of a run share a seed.
    _seed_torch((_start(seed, UPDATE, micro_batch_idx) + num_updates * _GOLDEN) & _MASK, device)


def seed_evaluation(batch_idx: int, device: torch.device) -> None:
    """Seed the torch streams for one batch of an evaluation: whatever a task draws there is always the same.

    `batch_idx` counts over all ranks.
    """
    _seed_torch(mix(EVALUATION, batch_idx), device)


@functools.cache
def _start(*parts: int) -> int:
    return mix(*parts)


def _seed_torch(number: int, device: torch.device) -> None:
    # The generators themselves: about 1 us, where `torch.manual_seed` takes 80. A negative number, which stands for the
    # same seed, would be tried as an unsigned one first, and fail by an exception that takes longer than the rest.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


@contextlib.contextmanager
def numpy_stream(*parts: int) -> Generator[None]:
    """While it lasts, NumPy's global generator draws from a stream of its own; its state comes back."""
    before = np.random.get_state()
    np.random.seed(mix(*parts) & 0xFFFFFFFF)
    try:
        yield
    finally:
        np.random.set_state(before)


def use_deterministic_kernels(enabled: bool) -> None:
    """Refuse CUDA kernels whose result depends on their timing (torch.use_deterministic_algorithms)."""
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != enabled:  # setting it imports Inductor, which is slow
        torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.deterministic = enabled


def host_state() -> dict[str, Any]:
    """The state of Python's and NumPy's global generators, in plain types: for user code that draws from them."""
    version, internal, gauss = random.getstate()
    legacy: tuple[Any, ...] = np.random.get_state(legacy=True)  # pyright: ignore[reportAssignmentType]
    name, keys, position, has_gauss, cached = legacy
    return {
        "python": [version, list(internal), gauss],
        "numpy": [
            str(name),
            torch.from_numpy(keys.astype(np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
    }


def set_host_state(state: dict[str, Any]) -> None:
    """Restore what `host_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
