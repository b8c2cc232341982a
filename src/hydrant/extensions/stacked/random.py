"""The random numbers of the lanes of a stack: recorded once, then drawn for each lane as a run alone draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant import seeding
from hydrant.errors import log
from hydrant.extensions.stacked.lanes import FunctionMode, distinct

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


_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
_FRESH = (torch.rand, torch.randn)
_LIKE = (torch.rand_like, torch.randn_like)
_FILLS = (Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_)


@dataclass(frozen=True)
class Draw:
    """How to draw the random numbers of one call again, from the default generator of their device."""

    like: Tensor
    """What the call returns, without its values: on the device `meta`."""
    device: torch.device
    fill: Callable[[Tensor], object]
    """Draws the numbers into a contiguous tensor of that shape and dtype on the device."""
    dropout: Dropout | None = None
    """The call, if it is one of dropout on CUDA."""

    def empty(self, *sizes: int) -> Tensor:
        """Return a tensor to fill, with these dimensions in front."""
        return self.like.new_empty(*sizes, *self.like.shape, device=self.device)


class RecordDraws(FunctionMode):
    """Records in `draws` the calls inside this context that draw random numbers, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        result = func(*args, **named)
        if (fill := _fill_of(func, args, named)) is not None:
            dtype = torch.float32 if _is_rounded_once(func, args, named) else result.dtype
            like = torch.empty_like(result, dtype=dtype, device="meta")
            self.draws.append(Draw(like, result.device, fill, _dropout_of(func, args, named)))
        return result


class ReplayDraws(FunctionMode):
    """Gives the calls inside this context that draw random numbers those in `drawn`, one after the other."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        super().__init__()
        self._drawn: Iterator[Tensor] = iter(drawn)

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        if func in _DROPOUTS:
            return (args[0] * next(self._drawn)).to(args[0].dtype) if _drops(args, named) else args[0]
        return next(self._drawn) if func in _FRESH + _LIKE + _FILLS else func(*args, **named)


def _fill_of(func: Any, args: Sequence[Any], named: dict[str, Any]) -> Callable[[Tensor], object] | None:
    """Return how to draw the random numbers of a call again into a tensor; None if it draws none."""
    if func in _DROPOUTS and _drops(args, named):
        ratio = _argument(args, named, 1, "p", 0.5)
        if func is F.dropout and args[0].is_cpu and args[0].is_contiguous() and ratio < 1:
            # What torch multiplies the input by on the CPU. On CUDA it has a kernel of its own.
            return lambda target: target.bernoulli_(1 - ratio).div_(1 - ratio)
        # The factors do not depend on the input.
        draw = partial(func, torch.ones_like(args[0]), p=ratio, training=True)
        if _is_rounded_once(func, args, named):
            return lambda target: target.copy_(draw() != 0).div_(1 - ratio)
        return _copies(draw)
    if func in _FRESH:
        return _copies(partial(func, *args, **named))
    if func in _FILLS and args[0].is_contiguous():
        return lambda target: func(target, *args[1:], **named)
    if func in _LIKE + _FILLS:
        # Into a new tensor with the same strides, because torch fills in the order of memory.
        return _copies(partial(func, torch.empty_like(args[0]), *args[1:], **named))
    return None


def _dropout_of(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Dropout | None:
    """Return the call of dropout on CUDA whose numbers another program can draw too; None for other calls."""
    ratio = _argument(args, named, 1, "p", 0.5)
    if func is F.dropout and args[0].is_cuda and isinstance(ratio, int | float) and ratio < 1:
        return Dropout(ratio, args[0].dtype, args[0].numel())
    return None


def _copies(draw: Callable[[], Tensor]) -> Callable[[Tensor], object]:
    return lambda target: target.copy_(draw())


def _is_rounded_once(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a dropout multiplies numbers of 16 bits by a float32 factor and rounds the product only.

    The kernel of CUDA does. The other dropouts multiply by a factor that is rounded to 16 bits.
    """
    return (
        func is F.dropout
        and args[0].is_cuda
        and args[0].dtype in (torch.float16, torch.bfloat16)
        and _argument(args, named, 1, "p", 0.5) < 1
    )


def _drops(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a call of a dropout function draws random numbers."""
    ratio = _argument(args, named, 1, "p", 0.5)
    is_zero = isinstance(ratio, int | float) and ratio == 0
    return bool(_argument(args, named, 2, "training", True)) and not is_zero


def _argument(args: Sequence[Any], named: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return named[name] if name in named else args[position] if len(args) > position else default


_WINDOW_BYTES = 2**26  # of the numbers of several updates that are drawn at once, for all micro-batches
_MAX_UPDATES = 64  # that are drawn at once
_CHUNK_BYTES = 2**28  # of the numbers that are drawn at once
_BYTES_OF_COUNTER = 5 * 8  # that `philox` holds

Source = tuple[int, Sequence[Draw]]
"""The seed of a run, and how it draws the random numbers of a micro-batch."""


class SourceBySource:
    """Draws the random numbers of one source after the other, as runs alone do.

    Args:
        sources: whose draws have the same shapes and types.
        device: of the generator that is seeded.
    """

    def __init__(self, sources: Sequence[Source], device: torch.device) -> None:
        self._sources, self._device = sources, device

    def draw(self, num_updates: int, micro_step: int) -> list[Tensor]:
        """Return the random numbers of a micro-batch, (sources, ...) for each draw."""
        drawn = [draw.empty(len(self._sources)) for draw in self._sources[0][1]] if self._sources else []
        for place, (seed, draws) in enumerate(self._sources):
            seeding.seed_micro_step(seed, num_updates, micro_step, self._device)
            for draw, rows in zip(draws, drawn, strict=True):
                draw.fill(rows[place])
        return drawn


def choose_drawing(sources: Sequence[Source], device: torch.device) -> SourceBySource | StackedDropouts:
    """Return what draws for all sources at once; or for one after the other, for a reason that the log has on CUDA."""
    in_turn = SourceBySource(sources, device)
    if device.type != "cuda" or not sources:
        return in_turn
    calls = [[draw.dropout for draw in draws] for _, draws in sources]
    reason = "not all of them are those of dropout"
    if all(call is not None for of_source in calls for call in of_source):
        widths = [call.widths() for call in calls[0] if call is not None]
        for choice in dict.fromkeys(zip(*widths, strict=True)) if all(widths) else ():
            together = StackedDropouts(sources, device, choice)
            if together.is_exact():
                return together
        reason = "torch's dropout draws in another order than is known, or drops all values of a call"
    log.info("random numbers are drawn lane by lane: %s", reason)
    return in_turn


class StackedDropouts:
    """Draws the factors of dropout of all sources.

    Args:
        sources: whose draws have the same shapes and types, and are all calls of dropout.
        device: of CUDA.
        widths: of `Dropout.counters`, for each call.
    """

    def __init__(self, sources: Sequence[Source], device: torch.device, widths: Sequence[int]) -> None:
        self._sources, self._device, self._draws = sources, device, sources[0][1]
        # The first source of each program, and the number of the program of each source.
        self._examples, self._programs = distinct([id(draws) for _, draws in sources])
        self._in_turn = SourceBySource([sources[place] for place in self._examples], device)
        self._first_seeds = dict[int, Tensor]()  # of update 0, by micro-step
        # By micro-step: (updates, sources, values) each.
        self._windows = dict[int, tuple[range, list[Tensor]]]()
        self._counters, self._sizes = self._count(widths)
        self._limits, self._scales = self._measure()
        self._bytes_of_source = _BYTES_OF_COUNTER * sum(self._sizes)
        self._num_micro_steps = 1  # of an update, as far as is known

    def is_exact(self) -> bool:
        """Return whether sources, one of each program, would draw these numbers alone. Waits for the device."""
        if not all(bool(scale.all()) for scale in self._scales):  # nothing was kept that shows the factor
            return False
        return all(
            torch.equal(together[self._examples], in_turn)
            for drawn in [(self.draw(n, 0), self._in_turn.draw(n, 0)) for n in (0, 1)]
            for together, in_turn in zip(*drawn, strict=True)
        )

    def draw(self, num_updates: int, micro_step: int) -> list[Tensor]:
        """Return the factors of a micro-batch, (sources, ...) for each call."""
        self._num_micro_steps = max(self._num_micro_steps, micro_step + 1)
        updates, masks = self._windows.pop(micro_step, (range(0), []))
        if num_updates not in updates:
            bytes_of_update = self._bytes_of_source * len(self._sources) * self._num_micro_steps
            count = min(max(_WINDOW_BYTES // bytes_of_update, 1), _MAX_UPDATES)
            updates = range(num_updates, num_updates + count)
            masks = self._masks(updates, micro_step)
        if num_updates + 1 in updates:  # else the memory is needed no longer
            self._windows[micro_step] = updates, masks
        place, drawn = num_updates - updates.start, list[Tensor]()
        for draw, mask, scale in zip(self._draws, masks, self._scales, strict=True):
            factors = mask[place] * scale[:, None]
            strides = (factors.shape[1], *draw.like.stride())  # torch draws in the order of memory
            drawn.append(factors.as_strided((len(factors), *draw.like.shape), strides).contiguous())
        return drawn

    def _masks(self, updates: range, micro_step: int) -> list[Tensor]:
        """Return which values are kept in some updates, (updates, sources, values) for each call."""
        if micro_step not in self._first_seeds:
            seeds = [seed for seed, _ in self._sources]
            self._first_seeds[micro_step] = seeding.first_seeds(seeds, micro_step).to(self._device)
        first = self._first_seeds[micro_step]
        seeds = torch.cat([seeding.later_seeds(first, num_updates) for num_updates in updates])
        limits = [limit.repeat(len(updates), 1) for limit in self._limits]
        size = max(_CHUNK_BYTES // self._bytes_of_source, 1)
        parts = [
            kept(
                seeds[at : at + size],
                self._counters,
                self._sizes,
                [limit[at : at + size] for limit in limits],
            )
            for at in range(0, len(seeds), size)
        ]
        masks = parts[0] if len(parts) == 1 else [torch.cat(of_call) for of_call in zip(*parts, strict=True)]
        return [mask.unflatten(0, (len(updates), -1)) for mask in masks]

    def _count(self, widths: Sequence[int]) -> tuple[tuple[Tensor, Tensor], list[int]]:
        """Return the counters of all calls, and how many each has."""
        generator = torch.cuda.default_generators[self._device.index or 0]
        seeding.seed_micro_step(0, 0, 0, self._device)
        threads, draws = list[Tensor](), list[Tensor]()
        for draw, width in zip(self._draws, widths, strict=True):
            assert draw.dropout is not None
            of_call = draw.dropout.counters(self._device, width, generator.get_offset())
            threads.append(of_call[0])
            draws.append(of_call[1])
            draw.fill(draw.empty())  # which moves the offset
        return (torch.cat(threads), torch.cat(draws)), list(map(len, threads))

    def _measure(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the first number that is dropped, (sources, 1), and the factor, (sources,), for each call."""
        places = torch.tensor(self._programs)
        limits, scales = list[Tensor](), list[Tensor]()
        for number, column in enumerate(self._in_turn.draw(0, 0)):
            dropouts = [self._sources[place][1][number].dropout for place in self._examples]
            limit = torch.tensor([dropout.limit() for dropout in dropouts if dropout is not None])
            limits.append(limit[places][:, None].to(self._device))
            scales.append(torch.stack([factors.max() for factors in column])[places.to(self._device)])
        return limits, scales
