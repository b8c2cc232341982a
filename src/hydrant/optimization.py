"""One update: named optimizers over named parts of a task, their schedules, and the one loss scaler.

One model with one optimizer is the plain case: a single optimizer named `main`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.batch import Outcome
from hydrant.clipping import Clipping
from hydrant.errors import ConfigError
from hydrant.precision import Precision
from hydrant.scheduling import FieldSchedules, metric_prefix


@dataclass(frozen=True)
class Update:
    """What one update did."""

    outcomes: list[Outcome]  # of the micro-batches
    stepped: bool  # False: a gradient was not finite, and nothing was applied
    grad_norms: dict[
        str, Tensor
    ]  # `grad_norm`, `critic/grad_norm`: before clipping, shape (); where computed


@dataclass(frozen=True)
class Share:
    """What one optimizer trains, by which losses, and how far its gradients may go.

    `losses` None is the sum of all, backpropagated in one pass; named ones take a pass each, in the task's order.
    `step` applies the optimizer's update: its own method, or that compiled.
    """

    optimizer: Optimizer
    step: Callable[[], Any]
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
        skip_non_finite: without a loss scaler too, do not apply an update whose loss or gradient is NaN or
            infinite. Synchronises once an update.
    """

    def __init__(
        self,
        shares: Mapping[str, Share],
        schedules: FieldSchedules,
        precision: Precision,
        *,
        skip_non_finite: bool = False,
    ) -> None:
        self.shares = dict(shares)
        self.schedules = schedules
        self._precision = precision
        self.skips_non_finite = skip_non_finite and not precision.scales_loss
        self._parameters = {name: share.parameters for name, share in shares.items()}
        self._optimizers = [share.optimizer for share in shares.values()]
        self._modal = [o for o in self._optimizers if _has_modes(o)]
        self._modal_parameters = [p for o in self._modal for g in o.param_groups for p in g["params"]]
        self._go_on_from(self._trained_weights())
        self._reevaluating = [o for o in self._optimizers if _needs_closure(o)]
        if self._reevaluating and (precision.scales_loss or len(shares) > 1 or skip_non_finite):
            name = type(self._reevaluating[0]).__name__
            raise ConfigError(
                "precision",
                f"{name} evaluates the loss several times an update, which a loss scaler (fp16), a second optimizer "
                "and skip_non_finite rule out. Use precision=bf16 or fp32",
            )

    @property
    def retains_graph(self) -> bool:
        """Whether losses are backpropagated one after the other."""
        return any(share.losses is not None for share in self.shares.values())

    def update(self, num_updates: int, accumulate: Callable[[], list[Outcome]], *, measure: bool) -> Update:
        """Make update `num_updates`: write the schedules, let `accumulate` add the gradients, clip, step.

        `accumulate` gives the same gradients however often it is called; the first call's outcomes are
        returned. `measure` asks for the gradient norms where they are not computed for clipping anyway.
        """
        self.schedules.write(num_updates)
        evaluations: list[list[Outcome]] = []
        norms: list[dict[str, Tensor]] = []

        def closure() -> Tensor:
            for optimizer in self._optimizers:
                optimizer.zero_grad(set_to_none=True)
            evaluations.append(accumulate())
            norms.append(self._clip(measure))
            return _mean_loss(evaluations[-1])

        if self._reevaluating:
            self._reevaluating[0].step(closure)  # type: ignore[arg-type]  # returns a tensor, as LBFGS wants
            return Update(evaluations[0], True, norms[0])
        loss = closure()
        if self.skips_non_finite and not bool(torch.stack([loss, *norms[0].values()]).isfinite().all()):
            return Update(evaluations[0], False, {})
        steps = {share.optimizer: share.step for share in self.shares.values()}
        return Update(evaluations[0], self._precision.step(steps), norms[0])

    def backward(self, outcome: Outcome, weight: Tensor) -> None:
        """Add the gradients of `weight` (shape ()) times each loss to the parameters of those that follow it."""
        passes = self._passes(outcome)
        for position, (loss, receivers) in enumerate(passes):
            keep = position < len(passes) - 1  # losses share parts of the graph
            self._precision.backward(loss, weight, receivers, retain_graph=keep)

    def scale_gradients(self, ratio: float) -> None:
        """Multiply every gradient."""
        for parameters in self._parameters.values():
            for gradient in [p.grad for p in parameters if p.grad is not None]:
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
            "trained_weights": self._trained_weights(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizers; the scheduled fields are written anew before the next update."""
        for name, share in self.shares.items():
            share.optimizer.load_state_dict(state["optimizers"][name])
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
                norm = torch.nn.utils.get_total_norm(
                    [g.coalesce().values() if g.is_sparse else g for g in gradients]
                )
                norms[f"{metric_prefix(name)}grad_norm"] = norm
            share.clipping(parameters, norm)
        return norms

    def _passes(self, outcome: Outcome) -> list[tuple[Tensor, list[nn.Parameter] | None]]:
        """Each loss to backpropagate, and into which parameters; None is all."""
        if not self.retains_graph:
            return [(outcome.total_loss(), None)]

        def receivers(loss: str | None) -> list[nn.Parameter]:
            own = {
                n: s
                for n, s in self.shares.items()
                if (loss is None if s.losses is None else loss in s.losses)
            }
            return [p for name in own for p in self._parameters[name]]

        passes = [(outcome.total_loss(), receivers(None))]
        passes += [(loss, receivers(name)) for name, loss in outcome.losses.items()]
        return [(loss, into) for loss, into in passes if into]

    def _trained_weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._modal_parameters]

    def _go_on_from(self, weights: list[Tensor]) -> None:
        for optimizer in self._modal:
            optimizer.train()  # type: ignore[attr-defined]
        for parameter, value in zip(self._modal_parameters, weights, strict=True):
            parameter.data.copy_(value)


def _mean_loss(outcomes: list[Outcome]) -> Tensor:
    """Over all targets, shape ()."""
    num_targets = sum(outcome.num_targets for outcome in outcomes)
    return torch.stack([o.total_loss().detach() * (o.num_targets / num_targets) for o in outcomes]).sum()


def _needs_closure(optimizer: Optimizer) -> bool:
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _has_modes(optimizer: Optimizer) -> bool:
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))
