"""One update: named optimizers with their groups and schedules, clipping, and the one loss scaler.

One model with one optimizer is the plain case: a single optimizer named `main`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.batch import Outcome
from hydrant.clipping import Clipping
from hydrant.errors import ConfigError
from hydrant.precision import Precision
from hydrant.scheduling import FieldSchedules


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
        schedules: what varies of their groups' fields.
        precision: owner of the loss scaler.
        clipping: of the gradients of all optimizers together.
    """

    def __init__(
        self,
        optimizers: Mapping[str, Optimizer],
        schedules: FieldSchedules,
        precision: Precision,
        clipping: Clipping,
    ) -> None:
        self.optimizers = dict(optimizers)
        self.schedules = schedules
        self._precision = precision
        self._clipping = clipping
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
        self.schedules.write(num_updates)
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

    def _clip(self, measure: bool) -> Tensor | None:
        """Unscale and clip; the norm of all gradients before, `None` if it is not wanted."""
        for optimizer in self.optimizers.values():
            self._precision.unscale(optimizer)
        norm = None
        if measure or self._clipping.max_norm is not None:
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(
                [g.coalesce().values() if g.is_sparse else g for g in gradients]
            )
        self._clipping(self._parameters, norm)
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "schedules": self.schedules.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizers; the scheduled fields are written anew before the next update."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.schedules.load_state_dict(state["schedules"])


def _needs_closure(optimizer: Optimizer) -> bool:
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty
