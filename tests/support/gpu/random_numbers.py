"""Random numbers of a GPU of the stub: a function of the CUDA generator's seed and offset, as on CUDA.

Those of dropout are CUDA's. The others are neither CUDA's numbers nor the CPU's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

_OFFSET_OF_A_CALL = 4  # CUDA's offsets are multiples of 4
_STRIDE = 1_000_003


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that a GPU uses if a call names none."""
    return torch.cuda.default_generators[device.index]


def host_generator(generator: torch.Generator) -> torch.Generator:
    """Return a generator of the CPU for one call, and advance the CUDA generator."""
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + _OFFSET_OF_A_CALL)
    made = torch.Generator()
    made.manual_seed((seed * _STRIDE + offset) % 2**63)
    return made


@dataclass(frozen=True)
class Draw:
    """What a call draws its random numbers from: the state of a CPU generator; for dropout, that of the CUDA one."""

    host_state: torch.Tensor
    seed: int
    offset: int

    @classmethod
    def next(cls, device: torch.device) -> Draw:
        """Return that of the next call that names no generator, and advance the CUDA generator."""
        generator = default_generator(device)
        seed, offset = generator.initial_seed(), generator.get_offset()
        return cls(host_generator(generator).get_state(), seed, offset)


_THREADS_PER_BLOCK, _MOST_BLOCKS = 256, 132 * 8  # of an H100


def dropout_mask(draw: Draw, x: torch.Tensor, kept: float) -> torch.Tensor:
    """Return which values a dropout keeps, as the kernel of CUDA in ATen/native/cuda/Dropout.cu.

    A thread computes `width` neighbouring values at a time, with as many numbers of Philox4x32-10, of which one draw
    gives four.
    """
    count, width = x.numel(), 16 // x.dtype.itemsize
    while count % width:
        width //= 2
    threads = _THREADS_PER_BLOCK * min(_MOST_BLOCKS, -(-count // _THREADS_PER_BLOCK))
    at = np.arange(count)
    if width > 1:
        visit, place = at // width, at % width
        thread, drawn, part = visit % threads, visit // threads * -(-width // 4) + place // 4, place % 4
    else:
        thread, drawn, part = at % threads, at // (4 * threads), at // threads % 4
    numbers = np.choose(part, _philox(draw.seed, thread, drawn + draw.offset // 4)).astype(np.float32)
    uniform = numbers * np.float32(2**-32) + np.float32(2**-33)
    mask = torch.empty_like(x, dtype=torch.bool)
    # In the order of memory.
    mask.as_strided((count,), (1,)).copy_(torch.from_numpy(uniform < np.float32(kept)))
    return mask


def _philox(seed: int, thread: np.ndarray, drawn: np.ndarray) -> list[np.ndarray]:
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    zero = np.zeros(len(thread), np.uint64)
    words = [drawn.astype(np.uint64), zero, thread.astype(np.uint64), zero]
    for number in range(10):
        keys = [
            np.uint64(((seed >> 32 * n) + number * step) & 0xFFFFFFFF)
            for n, step in enumerate((0x9E3779B9, 0xBB67AE85))
        ]
        products = [words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)]
        words = [
            (products[1] >> half) ^ words[1] ^ keys[0], products[1] & low,
            (products[0] >> half) ^ words[3] ^ keys[1], products[0] & low,
        ]  # fmt: skip
    return words


current: list[Draw] = []
"""That of the operation which computes."""
