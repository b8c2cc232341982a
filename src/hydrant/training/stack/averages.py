"""The averages of the weights of all lanes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from hydrant.batch import widened
from hydrant.optimizers.ema import ModelAverage
from hydrant.training.stack.distinct import distinct
from hydrant.training.stack.numbers import LaneNumbers
from hydrant.training.stack.weights import stack_in_place
from hydrant.training.trainer import Trainer


class StackedAverages:
    """Moves the averages of all lanes, which become views of stacked tensors; without averaging it does nothing.

    Args:
        lanes: the runs of a stack.
        stacked: the weights and buffers of all lanes, by the `id` of the tensor of the first lane.
    """

    def __init__(self, lanes: Sequence[Trainer], stacked: Mapping[int, Tensor]) -> None:
        self._averages = [
            cast("ModelAverage", lane.plan.averaging) for lane in lanes if lane.plan.averaging.is_on
        ]
        self._averaged: list[tuple[Tensor, Tensor]] = []
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._distinct: list[ModelAverage] = []
        self._places: list[int] = []
        if not self._averages:
            return
        self._weights = LaneNumbers(lanes[0].plan.world.device)
        # Lanes whose averages are configured alike, of which the first one gives the weight.
        first_lanes, self._places = distinct([repr(lane.plan.config["averaging"]) for lane in lanes])
        self._distinct = [self._averages[n] for n in first_lanes]
        first, states = self._averages[0], [average.states() for average in self._averages]
        model = states[0][1]
        for names, pairs in ((first.averaged, self._averaged), (first.copied, self._copied)):
            for name in names:
                pairs.append((stack_in_place([state[name] for state, _ in states]), stacked[id(model[name])]))

    @torch.no_grad()
    def update(self, num_updates: int, skipped: Collection[int]) -> None:
        """Add the weights after `num_updates` completed updates to the averages, but not those of skipped lanes."""
        by_settings = [average.weight(num_updates) for average in self._distinct]
        weights = [by_settings[place] for place in self._places]
        for n in skipped if weights else ():
            weights[n] = 0.0
        if not any(weights):
            return
        (row,) = self._weights([weights])
        rows = {dtype: row.to(dtype) for dtype in {average.dtype for average, _ in self._averaged}}
        is_partial = not all(weights)  # a lane that does not move may hold NaN
        for average, value in self._averaged:
            by_lane = _by_lane(rows[average.dtype], average)
            moved = average.lerp(widened(value), by_lane)
            average.copy_(moved.where(by_lane != 0, average) if is_partial else moved)
        for average, value in self._copied:
            average.copy_(value.where(_by_lane(row, average) != 0, average) if is_partial else value)


def _by_lane(row: Tensor, like: Tensor) -> Tensor:
    """Return numbers of the lanes, (lanes,), with as many dimensions as a stacked tensor."""
    return row.view(-1, *[1] * (like.ndim - 1))
