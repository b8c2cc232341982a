"""One update: named optimizers over named parts of a task, their schedules, and the one loss scaler.

One model with one optimizer is the plain case: a single optimizer named `main`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.batch import Outcome, Total, mean_loss
from hydrant.clipping import Clipping
from hydrant.compilation import Step
from hydrant.errors import ConfigError
from hydrant.norms import total_norm
from hydrant.precision import Precision
from hydrant.scheduling import FieldSchedules, config_prefix, metric_prefix

Accumulate = Callable[[], list[Outcome]]


class Result(Enum):
    """What became of an update."""

    APPLIED = auto()
    OVERFLOWED = auto()  # the loss scaler skipped it: to be tried again, with the smaller scale
    NOT_FINITE = auto()  # its loss or a gradient is NaN or infinite whatever the scale: to be passed over


class Update(NamedTuple):
    """What one update did."""

    outcomes: list[Outcome]  # of the micro-batches
    result: Result
    grad_norms: dict[str, Tensor]  # `grad_norm`, `critic/grad_norm`: before clipping, shape (); if computed


@dataclass(frozen=True)
class Share:
    """What one optimizer trains, by which losses, and how far its gradients may go.

    `losses` None is the sum of all, backpropagated in one pass; named ones take a pass each, in the order
    given. `step` applies the optimizer's update, eager or compiled.
    """

    optimizer: Optimizer
    step: Step
    clipping: Clipping
    losses: tuple[str, ...] | None = None

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]


class Optimization:
    """Applies updates to the parameters of a task.

    Args:
        shares: the optimizers by name, each with what is its own.
        schedules: what varies of their groups' fields.
        precision: owner of the loss scaler.
        skip_non_finite: do not apply an update whose loss or gradient is NaN or infinite, and not for want of a
            smaller loss scale. Synchronises every update.
    """

    def __init__(
        self, shares: Mapping[str, Share], schedules: FieldSchedules, precision: Precision, *,
        skip_non_finite: bool = False,
    ) -> None:  # fmt: skip
        self.shares = dict(shares)
        self.schedules = schedules
        self._precision = precision
        self.skips_non_finite = skip_non_finite
        self._parameters = {name: share.parameters for name, share in shares.items()}
        self._all_parameters = [p for own in self._parameters.values() for p in own]
        self._optimizers = [share.optimizer for share in shares.values()]
        self._clearing = [o for o in self._optimizers if type(o).zero_grad is not Optimizer.zero_grad]
        self._modal = [o for o in self._optimizers if _has_modes(o)]
        self._modal_parameters = [p for o in self._modal for g in o.param_groups for p in g["params"]]
        self._go_on_from(self._trained_weights())
        self._steps = {share.optimizer: share.step for share in shares.values()}
        self._passes = self._plan_passes()
        self._reevaluating = [o for o in self._optimizers if needs_closure(o)]
        if self._reevaluating:
            self._check_reevaluation()

    @property
    def retains_graph(self) -> bool:
        """Whether losses are backpropagated one after the other."""
        return any(share.losses is not None for share in self.shares.values())

    def update(self, num_updates: int, accumulate: Accumulate, total: Total, *, measure: bool) -> Update:
        """Make update `num_updates`: write the schedules, let `accumulate` add the gradients, clip, step.

        `accumulate` gives the same gradients however often it is called. `measure` asks for the gradient norms
        where they are not computed for clipping anyway. `total` sums over the ranks.
        """
        self.schedules.write(num_updates)
        if self._reevaluating:
            return self._reevaluate(accumulate, total, measure)
        outcomes = self._accumulate(accumulate)
        if self.skips_non_finite and not bool(mean_loss(outcomes, total).isfinite()):
            return Update(outcomes, Result.NOT_FINITE, {})
        norms = self._clip(measure)
        looks = self.skips_non_finite and not self._precision.scales_loss
        if looks and not bool(torch.stack(list(norms.values())).isfinite().all()):
            return Update(outcomes, Result.NOT_FINITE, {})
        is_applied = self._precision.step(self._steps, num_updates)
        return Update(outcomes, Result.APPLIED if is_applied else Result.OVERFLOWED, norms)

    def _accumulate(self, accumulate: Accumulate) -> list[Outcome]:
        for optimizer in self._clearing:
            optimizer.zero_grad()
        for parameter in self._all_parameters:
            parameter.grad = None  # which is all that torch's own zero_grad does, in a third of its time
        return accumulate()

    def _reevaluate(self, accumulate: Accumulate, total: Total, measure: bool) -> Update:
        """The update of an optimizer that evaluates the loss itself; the first evaluation is told."""
        evaluations: list[Update] = []

        def closure() -> Tensor:
            outcomes = self._accumulate(accumulate)
            evaluations.append(Update(outcomes, Result.APPLIED, self._clip(measure)))
            return mean_loss(outcomes, total)

        self._reevaluating[0].step(closure)  # type: ignore[arg-type]  # returns a tensor, as LBFGS wants
        return evaluations[0]

    def backward(self, outcome: Outcome, weight: Tensor) -> None:
        """Add the gradients of `weight` (shape ()) times each loss to the parameters of those that follow it."""
        for position, (name, receivers) in enumerate(self._passes):
            loss = outcome.total_loss() if name is None else outcome.losses[name]
            keep = position < len(self._passes) - 1  # losses share parts of the graph
            self._precision.backward(loss, weight, receivers, retain_graph=keep)

    def backward_of_none(self, outcome: Outcome) -> None:
        """Backward without targets, as other ranks wait in theirs: adds zeros, but to sharded weights what comes."""
        hooks = [p.register_hook(torch.zeros_like) for p in self._all_parameters if p.requires_grad]
        self.backward(outcome, torch.zeros_like(outcome.total_loss()))
        for hook in hooks:
            hook.remove()

    def keep_gradients(self) -> None:
        """Give every gradient memory of its own."""
        for parameter in self._all_parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()

    def scale_gradients(self, ratio: float) -> None:
        """Multiply every gradient."""
        for gradient in [p.grad for p in self._all_parameters if p.grad is not None]:
            gradient.mul_(ratio)

    @contextlib.contextmanager
    def showing_result(self) -> Generator[None]:
        """While it lasts, the parameters are what training has come to, which is to be evaluated and kept.

        That is what they are anyway, but for optimizers with modes for it, such as schedule-free ones (Defazio
        et al., "The road less scheduled", 2024). Afterwards every parameter is, bit for bit, as it was.
        """
        trained = self._trained_weights()
        for optimizer in self._modal:
            optimizer.eval()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            self._go_on_from(trained)

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizers": {name: share.optimizer.state_dict() for name, share in self.shares.items()},
            "schedules": self.schedules.state_dict(),
            "steps": {name: share.step.state_dict() for name, share in self.shares.items()},
            "trained_weights": self._trained_weights(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizers; the scheduled fields are written anew before the next update."""
        for name, share in self.shares.items():
            share.optimizer.load_state_dict(state["optimizers"][name])
            share.step.load_state_dict(state["steps"][name])
        self.schedules.load_state_dict(state["schedules"])
        self._go_on_from(state["trained_weights"])

    def _clip(self, measure: bool) -> dict[str, Tensor]:
        """Unscale and clip; the norms of the gradients before, where wanted."""
        norms: dict[str, Tensor] = {}
        for name, share in self.shares.items():
            self._precision.unscale(share.optimizer)
            parameters, norm = self._parameters[name], None
            if measure or self.skips_non_finite or share.clipping.max_norm is not None:
                gradients = [p.grad for p in parameters if p.grad is not None]
                norm = total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])
                norms[f"{metric_prefix(name)}grad_norm"] = norm
            share.clipping(parameters, norm)
        return norms

    def _plan_passes(self) -> list[tuple[str | None, list[nn.Parameter] | None]]:
        """Which losses to backpropagate, in this order, and into which parameters; None is the sum, and all."""
        if not self.retains_graph:
            return [(None, None)]
        followed = dict.fromkeys(loss for share in self.shares.values() for loss in share.losses or ())
        summed = [p for name, s in self.shares.items() if s.losses is None for p in self._parameters[name]]
        passes: list[tuple[str | None, list[nn.Parameter] | None]] = [(None, summed)] if summed else []
        for loss in followed:
            own = [name for name, share in self.shares.items() if loss in (share.losses or ())]
            passes.append((loss, [p for name in own for p in self._parameters[name]]))
        return passes

    def _check_reevaluation(self) -> None:
        """Raises ConfigError where a loss that is evaluated several times an update does not fit."""
        name = next(name for name, share in self.shares.items() if share.optimizer is self._reevaluating[0])
        told = f"{type(self._reevaluating[0]).__name__} evaluates the loss several times an update, which"
        if self._precision.scales_loss:
            raise ConfigError("precision", f"{told} a loss scaler rules out; use precision=bf16 or fp32")
        if len(self.shares) > 1:
            key = f"{config_prefix(name)}optimizer"
            raise ConfigError(key, f"{told} other optimizers rule out; choose another one")
        if self.skips_non_finite:
            raise ConfigError("skip_non_finite", f"{told} rules it out; use skip_non_finite=false")

    def _trained_weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._modal_parameters]

    def _go_on_from(self, weights: list[Tensor]) -> None:
        for optimizer in self._modal:
            optimizer.train()  # type: ignore[attr-defined]
        for parameter, value in zip(self._modal_parameters, weights, strict=True):
            parameter.data.copy_(value)


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether it evaluates the loss itself."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _has_modes(optimizer: Optimizer) -> bool:
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))
