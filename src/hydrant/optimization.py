"""One update: named optimizers with their groups and schedules, clipping, and the one loss scaler.

One model with one optimizer is the plain case: a single optimizer named `main`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.batch import Outcome
from hydrant.errors import ConfigError
from hydrant.precision import Precision
from hydrant.schedules import Plateau, Replay, Schedule, Stepped

AnySchedule = Schedule | Plateau | Stepped


@dataclass(frozen=True)
class ScheduledField:
    """One field of one param group, written before every update: `lr`, or one of a tuple as `betas.0`."""

    optimizer: Optimizer
    group_idx: int
    name: str
    position: int | None
    value: Callable[[int], float]  # what it is in an update

    @classmethod
    def scaled(
        cls, optimizer: Optimizer, group_idx: int, field: str, ratio: Callable[[int], float]
    ) -> ScheduledField:
        """The field's own value times `ratio`.

        Raises:
            ConfigError: the optimizer has no such field, or it is no number.
        """
        name, _, position = field.partition(".")
        group = optimizer.param_groups[group_idx]
        value = group.get(name)
        if position:
            items = value if isinstance(value, (tuple, list)) else ()
            value = items[int(position)] if position.isdigit() and int(position) < len(items) else None
        if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
            numbers = [k for k, v in group.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
            raise ConfigError(
                _key(field),
                f"{type(optimizer).__name__} has no number {field!r} to schedule; it has {', '.join(numbers)}",
            )
        base = float(value)
        place = int(position) if position else None
        return cls(optimizer, group_idx, name, place, lambda update: base * ratio(update))

    @classmethod
    def replayed(cls, optimizer: Optimizer, group_idx: int, field: str, replay: Replay) -> ScheduledField:
        """The field as a stepped scheduler writes it."""
        name, _, position = field.partition(".")
        place = int(position) if position else None
        return cls(optimizer, group_idx, name, place, lambda update: replay.value(update, group_idx, field))

    def write(self, update: int) -> None:
        group = self.optimizer.param_groups[self.group_idx]  # looked up: loading a state replaces the dicts
        value, current = self.value(update), group[self.name]
        if isinstance(current, Tensor):  # in place: a compiled update holds on to the tensor
            current.fill_(value)
        elif self.position is None:
            group[self.name] = value
        else:
            group[self.name] = (*current[: self.position], value, *current[self.position + 1 :])


@dataclass(frozen=True)
class Update:
    """What one update did."""

    outcomes: list[Outcome]  # of the micro-batches
    stepped: bool  # False: the loss scaler skipped it
    grad_norm: Tensor | None  # before clipping, shape (); None where nobody asked


class Optimization:
    """Applies updates to the parameters of a task.

    Args:
        optimizers: by name.
        schedules: by optimizer name and field; a field is `lr`, `weight_decay`, `betas.0` ... A stepped one may
            write other fields besides.
        precision: owner of the loss scaler.
        max_grad_norm: clip the gradients of each optimizer to this 2-norm; `None` does not clip.
    """

    def __init__(
        self,
        optimizers: Mapping[str, Optimizer],
        schedules: Mapping[str, Mapping[str, AnySchedule]],
        precision: Precision,
        max_grad_norm: float | None,
    ) -> None:
        self.optimizers = dict(optimizers)
        self._precision = precision
        self._max_norm = math.inf if max_grad_norm is None else max_grad_norm
        self.fields: dict[str, ScheduledField] = {}
        for name, optimizer in optimizers.items():
            for field, schedule in schedules.get(name, {}).items():
                self._attach(name, optimizer, field, schedule)
        self._plateaus = {
            f"{name}.{field}": schedule
            for name, fields in schedules.items()
            for field, schedule in fields.items()
            if isinstance(schedule, Plateau)
        }
        self._parameters = [
            p
            for optimizer in optimizers.values()
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        self._reevaluating = [o for o in optimizers.values() if _needs_closure(o)]
        if self._reevaluating and (precision.scales_loss or len(optimizers) > 1):
            name = type(self._reevaluating[0]).__name__
            raise ConfigError(
                "precision",
                f"{name} evaluates the loss several times an update, which a loss scaler (fp16) and a second "
                "optimizer rule out. Use precision=bf16 or fp32",
            )

    def update(self, num_updates: int, accumulate: Callable[[], list[Outcome]], *, measure: bool) -> Update:
        """Make update `num_updates`: write the schedules, let `accumulate` add the gradients, clip, step.

        `accumulate` gives the same gradients however often it is called; the first call's outcomes are
        returned. `measure` asks for the gradient norm where it is not computed for clipping anyway.
        """
        for field in self.fields.values():
            field.write(num_updates)
        evaluations: list[list[Outcome]] = []
        norms: list[Tensor | None] = []

        def closure() -> Tensor:
            for optimizer in self.optimizers.values():
                optimizer.zero_grad(set_to_none=True)
            evaluations.append(accumulate())
            norms.append(self._clip(measure))
            losses = [loss.detach() for outcome in evaluations[-1] for loss in outcome.losses.values()]
            return torch.stack(losses).sum() / len(evaluations[-1])

        if self._reevaluating:
            self._reevaluating[0].step(closure)  # type: ignore[arg-type]  # returns a tensor, as LBFGS wants
            return Update(evaluations[0], True, norms[0])
        closure()
        stepped = self._precision.step(list(self.optimizers.values()))
        return Update(evaluations[0], stepped, norms[0])

    def _attach(self, name: str, optimizer: Optimizer, field: str, schedule: AnySchedule) -> None:
        replay = Replay(schedule, optimizer) if isinstance(schedule, Stepped) else None
        written = [field] if replay is None else replay.fields
        if field not in written:
            raise ConfigError(_key(field), f"this scheduler writes {', '.join(written)}; not {field}")
        for written_field in written:
            for group_idx in range(len(optimizer.param_groups)):
                key = f"{name}.{group_idx}.{written_field}"
                if key in self.fields:
                    raise ConfigError(_key(field), f"{written_field} has a schedule already; remove one")
                self.fields[key] = (
                    ScheduledField.replayed(optimizer, group_idx, written_field, replay)
                    if replay is not None
                    else ScheduledField.scaled(optimizer, group_idx, field, schedule)  # type: ignore[arg-type]
                )

    def observe(self, row: Mapping[str, float]) -> None:
        """Tell the schedules that depend on them an evaluation's metrics."""
        for plateau in self._plateaus.values():
            plateau.observe(row)

    def _clip(self, measure: bool) -> Tensor | None:
        """The norm of all gradients, clipped to the limit; `None` if neither is wanted."""
        for optimizer in self.optimizers.values():
            self._precision.unscale(optimizer)
        if self._max_norm == math.inf and not measure:
            return None
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])
        if self._max_norm < math.inf:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, norm)
        return norm

    def values(self, update: int) -> dict[str, float]:
        """What the schedules give for an update, by `optimizer.group.field`."""
        return {key: field.value(update) for key, field in self.fields.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "schedules": {name: plateau.state_dict() for name, plateau in self._plateaus.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizers; the scheduled fields are written anew before the next update."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, plateau in self._plateaus.items():
            plateau.load_state_dict(state["schedules"][name])


def _key(field: str) -> str:
    return "scheduler" if field == "lr" else f"schedules.{field}"


def _needs_closure(optimizer: Optimizer) -> bool:
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def metric_name(key: str) -> str:
    """`main.0.lr` -> `lr`, `main.1.lr` -> `lr/1`, `critic.0.lr` -> `critic/lr`."""
    optimizer, group_idx, field_name = key.split(".", 2)
    prefix = "" if optimizer == "main" else f"{optimizer}/"
    return prefix + field_name + ("" if group_idx == "0" else f"/{group_idx}")
