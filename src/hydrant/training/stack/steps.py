"""Clipping and the steps of the optimizers of all lanes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from hydrant.optimizers.scheduled_fields import metric_prefix
from hydrant.training.stack.optimizer import StackedOptimizer
from hydrant.training.stack.reasons import CannotStack
from hydrant.training.stack.tensors import StackedTensors
from hydrant.training.trainer import Trainer


class StackedSteps:
    """Clips the gradients of all lanes and applies them, with the thresholds and the schedules of each lane.

    Args:
        lanes: the runs of a stack.
        tensors: of the lanes.
    """

    def __init__(self, lanes: Sequence[Trainer], tensors: StackedTensors) -> None:
        self._lanes, self._first, self._tensors = lanes, lanes[0], tensors
        self._optimizers: dict[str, StackedOptimizer | None] = {}
        # Of each lane: the clipping by the name of the optimizer, and the value of an update by the field.
        self._clippings = {
            name: [lane.optimizers.entries[name].clipping for lane in lanes] for name in tensors.weights
        }
        self._fields = {
            key: [lane.optimizers.schedules.fields[key].value for lane in lanes]
            for key in self._first.optimizers.schedules.fields
        }
        # Lanes that have applied an update, which makes the states of their optimizers.
        states = [lane.state for lane in lanes]
        self._applied = {n for n, state in enumerate(states) if state.num_updates > state.num_skipped}

    @torch.no_grad()
    def clip(self, *, measure: bool) -> dict[str, Tensor]:
        """Clip the gradients; return their norms before clipping, (lanes,), as `Optimizers` does for one run."""
        norms = dict[str, Tensor]()
        for name, groups in self._tensors.weights.items():
            clippings = self._clippings[name]
            rows = [w.rows.grad for w in groups if w is not None and w.rows.grad is not None]
            needs_norm = (
                measure or self._first.optimizers.skips_non_finite or clippings[0].max_norm is not None
            )
            if needs_norm and rows:
                each = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows])
                norms[f"{metric_prefix(name)}grad_norm"] = norm = torch.linalg.vector_norm(each, dim=0)
                if clippings[0].max_norm is not None:
                    limits = _column([clipping.max_norm for clipping in clippings], norm)
                    for row in rows:
                        row.mul_((limits / (norm + 1e-6)).clamp(max=1.0)[:, None])
            if clippings[0].max_value is not None:
                for row in rows:
                    limits = _column([clipping.max_value for clipping in clippings], row)[:, None]
                    row.copy_(row.clamp(-limits, limits))
            if clippings[0].agc is not None:
                self._tensors.show_gradients()
                for lane, clipping in zip(self._lanes, clippings, strict=True):
                    clipping(lane.optimizers.entries[name].parameters, None)
        return norms

    def apply(self, num_updates: int, skipped: Collection[int]) -> None:
        """Apply the gradients of the update after `num_updates` completed ones, but not those of skipped lanes."""
        places = list(skipped)
        for name in self._tensors.weights:
            have_states = len(self._applied) == len(self._lanes)
            optimizer = self._optimizer(name) if have_states else None
            numbers = self._scheduled(name, num_updates)
            if optimizer is None or not optimizer.prepare(numbers):
                self._step_alone(name, num_updates, skipped)
                continue
            kept = [(tensor, tensor[places].clone()) for tensor in optimizer.tensors()] if places else []
            optimizer.step(numbers)
            for tensor, before in kept:
                tensor[places] = before
        self._applied |= set(range(len(self._lanes))) - set(skipped)

    def _optimizer(self, name: str) -> StackedOptimizer | None:
        """Return an optimizer of all lanes; None if the lanes must make their steps alone."""
        if name not in self._optimizers:
            optimizers = [lane.optimizers.entries[name].optimizer for lane in self._lanes]
            device = self._first.plan.world.device
            try:
                self._optimizers[name] = StackedOptimizer(optimizers, self._tensors.weights[name], device)
            except CannotStack:
                self._optimizers[name] = None
        return self._optimizers[name]

    def _step_alone(self, name: str, num_updates: int, skipped: Collection[int]) -> None:
        """Let every lane make the step of its own optimizer."""
        self._tensors.show_gradients()
        for n, lane in enumerate(self._lanes):
            if n not in skipped:
                lane.optimizers.schedules.write(num_updates)
                lane.optimizers.entries[name].step()

    def _scheduled(self, name: str, num_updates: int) -> list[dict[str, list[float]]]:
        """Return the values of the scheduled fields of each group of an optimizer, for every lane."""
        numbers: list[dict[str, list[float]]] = [{} for _ in self._tensors.weights[name]]
        for key, values in self._fields.items():
            optimizer, position, field = key.split(".", 2)
            if optimizer == name:
                numbers[int(position)][field] = [value(num_updates) for value in values]
        return numbers


def _column(values: Sequence[float | None], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)
