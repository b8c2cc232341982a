"""The batches of all lanes, stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hydrant.batch import Batch, tensors_of, with_tensors
from hydrant.training.trainer import Trainer


class StackedStream:
    """The micro-batches of an update for all lanes: every tensor has the lanes in front.

    Each lane reads its own stream, so its samples are those of its run alone. Lanes with the same seed share one.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        seeds = [lane.plan.spec.seed for lane in lanes]
        self._readers = [lane for n, lane in enumerate(lanes) if seeds.index(seeds[n]) == n]
        read = [lane.plan.spec.seed for lane in self._readers]
        self._is_shared = len(self._readers) < len(lanes)
        self._places = torch.tensor([read.index(seed) for seed in seeds], device=lanes[0].plan.world.device)

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        """Yield the micro-batches of the update after `num_updates` completed ones, mixed."""
        streams = [lane.stream.micro_batches(num_updates) for lane in self._readers]
        for micro_step, batches in enumerate(zip(*streams, strict=True)):
            mixed = [
                lane.plan.mixing(batch, lane.plan.spec.seed, num_updates, micro_step)
                for lane, batch in zip(self._readers, batches, strict=True)
            ]
            columns = zip(*(tensors_of(batch) for batch in mixed), strict=True)
            yield with_tensors(mixed[0], [self._stack(column) for column in columns])

    def _stack(self, tensors: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack(list(tensors))
        return stacked.index_select(0, self._places) if self._is_shared else stacked
