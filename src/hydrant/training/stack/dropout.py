"""The factors of dropout for all lanes at once, on CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.errors import log
from hydrant.training.stack.distinct import distinct
from hydrant.training.stack.draws import Draw
from hydrant.training.stack.philox import kept

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
        reason = (
            "torch's kernel of dropout draws in another order than is known, or drops all values of a call"
        )
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
        self._windows = dict[
            int, tuple[range, list[Tensor]]
        ]()  # by micro-step: (updates, sources, values) each
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
