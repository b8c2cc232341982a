"""Random streams as pure functions of `(seed, position)`, so that a resumed run has nothing to replay.

Integers are mixed by SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014). `uniform` applies the same mixer to a whole tensor on its device, so that the augmentation of a
sample depends only on the sample, and not on its batch, worker or rank.
"""

import contextlib
import functools
import os
import random
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1  # keeps 64 bits
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # the constants of SplitMix64

# Each stream has its own number, so that equal seeds and positions give different random numbers.
MODEL, ORDER, UPDATE, SAMPLE, SYNTHETIC, MIXING, EVALUATION, FOLDS, TEXTS, LABELS = range(1, 11)


def hash_of(*parts: int) -> int:
    """Return a 64-bit hash of integers: equal parts give equal hashes, different parts unrelated ones.

    >>> hash_of(0, 1) == hash_of(0, 1), hash_of(0, 1) == hash_of(1, 0)
    (True, False)
    """
    state = 0
    for part in parts:
        state = (state + _GOLDEN + part) & _MASK
        state = ((state ^ (state >> 30)) * MULTIPLIERS[0]) & _MASK
        state = ((state ^ (state >> 27)) * MULTIPLIERS[1]) & _MASK
        state ^= state >> 31
    return state


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # a logical shift


def uniform(seed: int, positions: Tensor, lane: int) -> Tensor:
    """Return one uniform float32 in [0, 1) per position (int64, any shape). Each `lane` is an independent draw.

    >>> uniform(0, torch.tensor([5, 6]), 0)[1] == uniform(0, torch.tensor([6]), 0)[0]
    tensor(True)
    """
    x = positions * _signed(_GOLDEN) + _signed(hash_of(seed, lane))
    x = (x ^ _shift_right(x, 30)) * _signed(MULTIPLIERS[0])
    x = (x ^ _shift_right(x, 27)) * _signed(MULTIPLIERS[1])
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 40).to(torch.float32) * 2.0**-24


def permutation(seed: int, epoch: int, num_samples: int) -> Tensor:
    """Return the order of the samples in an epoch: int64, shape (num_samples,), on the host."""
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(hash_of(seed, ORDER, epoch)))


def seed_host(*parts: int) -> int:
    """Seed the CPU generators of Python, NumPy and torch from integers, and return the seed."""
    value = hash_of(*parts)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value)  # `torch.manual_seed` would seed CUDA's too
    return value


def seed_process(seed: int, *stream: int) -> None:
    """Seed Python, NumPy and torch (every device) from `(seed, stream)`."""
    value = seed_host(seed, *stream)
    if torch.cuda.is_available():  # else torch keeps the call for later, with its stack
        torch.cuda.manual_seed_all(value)


def seed_micro_step(seed: int, num_updates: int, micro_batch_idx: int, device: torch.device) -> None:
    """Seed the torch generators (of dropout, for example) for one micro-batch of one update.

    `micro_batch_idx` counts over all ranks: two ranks with one micro-batch each draw the same numbers as one rank with
    two.
    """
    _seed_torch(_micro_step_seed(seed, num_updates, micro_batch_idx), device)


def has_drawn(seed: int, num_updates: int, micro_batch_idx: int, device: torch.device) -> bool:
    """Return whether random numbers were drawn from torch since `seed_micro_step` was called like this."""
    value = _micro_step_seed(seed, num_updates, micro_batch_idx)
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    seeded = [torch.Generator(generator.device).manual_seed(value) for generator in generators]
    return any(not torch.equal(a.get_state(), b.get_state()) for a, b in zip(generators, seeded, strict=True))


def seed_evaluation(batch_idx: int, device: torch.device) -> None:
    """Seed the torch generators for one batch of an evaluation, so that every evaluation draws the same numbers.

    `batch_idx` counts over all ranks.
    """
    _seed_torch(hash_of(EVALUATION, batch_idx), device)


_cached_mix = functools.cache(hash_of)


def _micro_step_seed(seed: int, num_updates: int, micro_batch_idx: int) -> int:
    # As in SplitMix64, the state advances by a constant per update, so no two updates of a run share a seed.
    return (_cached_mix(seed, UPDATE, micro_batch_idx) + num_updates * _GOLDEN) & _MASK


def first_seeds(seeds: Iterable[int], micro_batch_idx: int) -> Tensor:
    """Return what `seed_micro_step` seeds the generators of several runs with in update 0: int64, their 64 bits."""
    return torch.tensor([_signed(_micro_step_seed(seed, 0, micro_batch_idx)) for seed in seeds])


def later_seeds(first: Tensor, num_updates: int) -> Tensor:
    """Return the seeds after `num_updates` completed updates, from those of update 0."""
    return first + _signed((num_updates * _GOLDEN) & _MASK)


def _seed_torch(seed: int, device: torch.device) -> None:
    # Seeding the generators takes about 1 us, `torch.manual_seed` 80. The seed must not be negative: torch would first
    # fail to convert it to an unsigned number, and catching that exception takes longer than all the rest.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


@contextlib.contextmanager
def numpy_stream(*parts: int) -> Generator[None]:
    """Seed NumPy's global generator from `parts` in this context, and restore its state afterwards."""
    state = np.random.get_state()
    np.random.seed(hash_of(*parts) & 0xFFFFFFFF)
    try:
        yield
    finally:
        np.random.set_state(state)


def use_deterministic_kernels(enabled: bool) -> None:
    """Make torch raise an error for CUDA kernels without deterministic results, or allow them again."""
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # The setter imports Inductor, which is slow.
    if torch.are_deterministic_algorithms_enabled() != enabled or (enabled and warns_only):
        torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.deterministic = enabled


def host_state() -> dict[str, Any]:
    """Return the state of Python's and NumPy's global generators, which user code may draw from, in plain types."""
    version, internal, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = legacy
    keys = torch.from_numpy(keys.astype(np.int64))
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(name), keys, int(position), int(has_gauss), float(cached)],
    }


@contextlib.contextmanager
def kept_generators(devices: Sequence[int] = ()) -> Generator[None]:
    """Restore the global generators of Python, NumPy and torch after this block, also those of these CUDA devices."""
    host = host_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        set_host_state(host)


def is_host_state(state: dict[str, Any]) -> bool:
    """Return whether the generators have the state that `host_state` returned."""
    now = host_state()
    numpy = zip(now["numpy"], state["numpy"], strict=True)
    return now["python"] == state["python"] and all(
        torch.equal(one, other) if isinstance(one, Tensor) else one == other for one, other in numpy
    )


def set_host_state(state: dict[str, Any]) -> None:
    """Restore a state that `host_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
