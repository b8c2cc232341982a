"""CUDA's dropout for several seeds at once, in operations whose number does not depend on that of the seeds.

CUDA draws by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a function of the
seed, of the thread that draws, and of how often it has drawn. `StackedDropouts` compares the numbers with
those of torch's kernel before it uses them, because torch does not promise which thread draws for which element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = (1 << 32) - 1
_BLOCK = 256  # threads


@dataclass(frozen=True)
class Dropout:
    """A call of dropout on CUDA.

    Args:
        ratio: of the values that become 0.
        dtype: of the values.
        num_values: of one lane.
    """

    ratio: float
    dtype: torch.dtype
    num_values: int

    def counters(self, device: torch.device, width: int, offset: int) -> tuple[Tensor, Tensor]:
        """Return the thread, and how often it has drawn, for every four values in their order in memory: (N,) int64.

        Args:
            device: of the call.
            width: how many neighbouring values a thread computes at a time, a multiple of 4 that divides their number.
            offset: of the generator before the call.
        """
        properties = torch.cuda.get_device_properties(device)
        most = properties.multi_processor_count * (properties.max_threads_per_multi_processor // _BLOCK)
        num_threads = _BLOCK * min(most, -(-self.num_values // _BLOCK))
        fours, fours_at_a_time = torch.arange(self.num_values // 4), width // 4
        visits = fours // fours_at_a_time
        draws = visits // num_threads * fours_at_a_time + fours % fours_at_a_time
        return (visits % num_threads).to(device), (draws + offset // 4).to(device)

    def widths(self) -> list[int]:
        """Return what the kernels of several versions of torch may take as `width`.

        Nothing if that is below 4, or if there are no values.
        """
        width = 16 // self.dtype.itemsize
        while self.num_values % width:
            width //= 2
        return [width, 4] if width >= 4 and self.num_values else []

    def limit(self) -> int:
        """Return the first of the 32-bit numbers whose value is dropped; those below it are kept."""
        kept, low, high = np.float32(1 - self.ratio), 0, 1 << 32
        while low < high:
            middle = (low + high) // 2
            uniform = np.float32(middle) * np.float32(2.0**-32) + np.float32(2.0**-33)
            low, high = (middle + 1, high) if uniform < kept else (low, middle)
        return low


def philox(seeds: Tensor, threads: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four 32-bit numbers, as int64, for each seed (S,) and each thread and draw (N,): (S, N) each.

    In each round, two numbers are multiplied; the upper halves of the products are mixed with the other two numbers and
    two keys, and the lower halves take their place. Here those are whole products, masked where they are mixed.
    """
    rounds = torch.arange(_ROUNDS, device=seeds.device)[:, None]
    keys = [
        (half + rounds * step)[:, :, None]
        for half, step in zip((seeds, seeds >> 32), _KEY_STEPS, strict=True)
    ]
    products = draws * _FACTORS[0], threads * _FACTORS[1]  # of the first round, the same for all seeds
    first, third = ((products[1] >> 32) ^ keys[0][0]) & _LOW, ((products[0] >> 32) ^ keys[1][0]) & _LOW
    second, fourth = products[1].expand_as(first), products[0].expand_as(first)
    spare = torch.empty_like(first)
    for number in range(1, _ROUNDS):
        first.mul_(_FACTORS[0])
        third.mul_(_FACTORS[1])
        mixed = _mixed(third, second, keys[0][number], out=spare)
        # Those of the first round are the same for all seeds, so that they are no memory to write into.
        other = _mixed(first, fourth, keys[1][number], out=second if number > 1 else torch.empty_like(first))
        spare = fourth if number > 1 else torch.empty_like(first)
        first, second, third, fourth = mixed, third, other, first
    return first, second.bitwise_and_(_LOW), third, fourth.bitwise_and_(_LOW)


def _mixed(product: Tensor, other: Tensor, key: Tensor, out: Tensor) -> Tensor:
    return (
        torch.bitwise_right_shift(product, 32, out=out)
        .bitwise_xor_(other)
        .bitwise_xor_(key)
        .bitwise_and_(_LOW)
    )


def kept(
    seeds: Tensor, counters: tuple[Tensor, Tensor], sizes: Sequence[int], limits: Sequence[Tensor]
) -> list[Tensor]:
    """Return which values several calls keep, bool, (S, 4 * size) each, in their order in memory.

    Args:
        seeds: int64, (S,).
        counters: of all calls, one after the other.
        sizes: the number of counters of each call.
        limits: `Dropout.limit` of each call for each seed, (S, 1).
    """
    masks = [torch.empty(len(seeds), size, 4, dtype=torch.bool, device=seeds.device) for size in sizes]
    for place, numbers in enumerate(philox(seeds, *counters)):
        for mask, of_call, limit in zip(masks, numbers.split(sizes, dim=1), limits, strict=True):
            torch.lt(of_call, limit, out=mask[:, :, place])
    return [mask.flatten(1) for mask in masks]
