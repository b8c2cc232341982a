"""Clipping and the steps of the optimizers of all lanes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from hydrant.errors import log
from hydrant.optimizers.clipping import norm_ratio
from hydrant.optimizers.scheduled_fields import metric_prefix
from hydrant.training.compile.supported import optimizer_name
from hydrant.training.stack.fields import StackedField
from hydrant.training.stack.optimizer import Numbers, StackedOptimizer
from hydrant.training.stack.reasons import CannotStack
from hydrant.training.stack.states import separate_counts
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
        self._max_norms, self._max_values = self._limits("max_norm"), self._limits("max_value")
        self._fields = {
            key: StackedField([lane.optimizers.schedules.fields[key] for lane in lanes])
            for key in self._first.optimizers.schedules.fields
        }
        # Lanes that have applied an update, which makes the states of their optimizers. Before, all step alone.
        states = [lane.state for lane in lanes]
        self._applied = {n for n, state in enumerate(states) if state.num_updates > state.num_skipped}
        if len(self._applied) < len(lanes):
            separate_counts([entry.optimizer for lane in lanes for entry in lane.optimizers.entries.values()])

    def _limits(self, field: str) -> dict[str, Tensor | None]:
        """Return one kind of clipping limit by optimizer, (lanes,), in torch's default dtype; None: no limit."""
        device, limits = self._first.plan.world.device, dict[str, Tensor | None]()
        for name, clippings in self._clippings.items():
            values = [getattr(clipping, field) for clipping in clippings]
            limits[name] = None if values[0] is None else torch.tensor(values, device=device)
        return limits

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
                if (limits := self._max_norms[name]) is not None:
                    ratios = norm_ratio(norm, limits)
                    for row in rows:
                        row.mul_(ratios[:, None])
            if (limits := self._max_values[name]) is not None:
                for row in rows:
                    most = limits.to(row.dtype)[:, None]
                    row.copy_(row.clamp(-most, most))
            if clippings[0].agc is not None:
                self._tensors.show_gradients()
                for lane, clipping in zip(self._lanes, clippings, strict=True):
                    clipping(lane.optimizers.entries[name].parameters, None)
        return norms

    def apply(self, num_updates: int, skipped: Collection[int]) -> None:
        """Apply the gradients of the update after `num_updates` completed ones, but not those of skipped lanes."""
        places = list(skipped)
        for name in self._tensors.weights:
            numbers = self._scheduled(name, num_updates)
            optimizer = self._optimizer(name, numbers)
            if optimizer is None:
                self._step_alone(name, num_updates, skipped)
                continue
            kept = [(tensor, tensor[places].clone()) for tensor in optimizer.tensors()] if places else []
            optimizer.step(numbers)
            for tensor, before in kept:
                tensor[places] = before
        if len(self._applied) < len(self._lanes):
            self._applied |= set(range(len(self._lanes))) - set(skipped)

    def _optimizer(self, name: str, numbers: Numbers) -> StackedOptimizer | None:
        """Return an optimizer of all lanes; None if the lanes make their steps alone, in the first update too."""
        if name not in self._optimizers and len(self._applied) == len(self._lanes):
            optimizers = [lane.optimizers.entries[name].optimizer for lane in self._lanes]
            try:
                self._optimizers[name] = StackedOptimizer(optimizers, self._tensors.weights[name], numbers)
            except CannotStack as reason:
                log.info("the steps of %s are made lane by lane: %s", optimizer_name(optimizers[0]), reason)
                self._optimizers[name] = None
                separate_counts(optimizers)
        return self._optimizers.get(name)

    def _step_alone(self, name: str, num_updates: int, skipped: Collection[int]) -> None:
        """Let every lane make the step of its own optimizer."""
        self._tensors.show_gradients()
        for n, lane in enumerate(self._lanes):
            if n not in skipped:
                lane.optimizers.schedules.write(num_updates)
                lane.optimizers.entries[name].step()

    def _scheduled(self, name: str, num_updates: int) -> list[dict[str, Sequence[float]]]:
        """Return the values of the scheduled fields of each group of an optimizer, for every lane."""
        numbers: list[dict[str, Sequence[float]]] = [{} for _ in self._tensors.weights[name]]
        for key, values in self._fields.items():
            optimizer, position, field = key.split(".", 2)
            if optimizer == name:
                numbers[int(position)][field] = values(num_updates)
        return numbers
