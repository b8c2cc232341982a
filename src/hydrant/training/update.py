"""One update: named optimizers over named parts of a task, their schedules, and one loss scaler.

A model with one optimizer is the plain case: a single optimizer named `main`.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.batch import AllReduce, Outcome, mean_loss
from hydrant.errors import ConfigError
from hydrant.optimizers import kernels
from hydrant.optimizers.scheduled_fields import FieldSchedules, config_prefix, items_of, metric_prefix
from hydrant.training.precision import Precision

StepStatus = Literal["applied", "overflowed", "not_finite"]
"""Whether an update was applied.

overflowed: skipped by the loss scaler; try it again with the smaller scale.
not_finite: skipped because its loss or a gradient is NaN or infinite at any scale.
"""

Accumulate = Callable[[], tuple[list[Outcome], int | None]]
"""Accumulates the gradients of an update; returns the first two fields of `Update`."""


class Update(NamedTuple):
    """The result of one update."""

    outcomes: list[Outcome]  # of the micro-batches of this rank
    stop: int | None  # the signal that stops all ranks after this update
    status: StepStatus
    grad_norms: dict[str, Tensor]  # `grad_norm`, `critic/grad_norm`: before clipping, shape (); if computed


@dataclass(frozen=True)
class OptimizerEntry:
    """One optimizer: what applies its update, how its gradients are clipped, and the losses it follows.

    Without `losses` it follows the sum of all losses, in one backward pass. Named losses take one pass each, in the
    order given.
    """

    optimizer: Optimizer
    step: kernels.OptimizerStep  # eager or compiled
    clipping: kernels.Clipping
    losses: Sequence[str] | None = None

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]


class Turn:
    """Optimizers that update at once, by the gradients of one forward pass: all of a task, or one that takes turns.

    Args:
        entries: the optimizers by name.
        precision: owns the loss scaler.
        name: of the optimizer whose turn it is; empty if all update at once.
    """

    def __init__(self, entries: Mapping[str, OptimizerEntry], precision: Precision, name: str = "") -> None:
        self.entries, self.name, self._precision = entries, name, precision
        self.parameters = {name: entry.parameters for name, entry in entries.items()}
        self.all_parameters = [p for parameters in self.parameters.values() for p in parameters]
        self.steps = {entry.optimizer: entry.step for entry in entries.values()}
        self._custom_zero_grad = [o for o in self.steps if type(o).zero_grad is not Optimizer.zero_grad]
        self._passes = self._plan_passes()

    def clear_gradients(self) -> None:
        for optimizer in self._custom_zero_grad:
            optimizer.zero_grad()
        for parameter in self.all_parameters:
            parameter.grad = None  # torch's own zero_grad does only this, in three times as long

    def backward(self, outcome: Outcome, weight: Tensor) -> None:
        """Add the gradients of `weight` (shape ()) times each loss to the parameters that follow this loss."""
        for position, (name, parameters) in enumerate(self._passes):
            loss = outcome.total_loss() if name is None else outcome.losses[name]
            retain_graph = position < len(self._passes) - 1  # losses share parts of the graph
            self._precision.backward(loss, weight, parameters, retain_graph=retain_graph)

    def backward_zeros(self, outcome: Outcome) -> None:
        """Run backward for a micro-batch without targets, with zero gradients.

        The other ranks wait in the collectives of their backward. Sharded weights still receive the gradients that
        those ranks send.
        """
        hooks = [p.register_hook(torch.zeros_like) for p in self.all_parameters if p.requires_grad]
        self.backward(outcome, torch.zeros_like(outcome.total_loss()))
        for hook in hooks:
            hook.remove()

    def clone_gradients(self) -> None:
        """Copy every gradient to new memory."""
        for parameter in self.all_parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()

    def scale_gradients(self, ratio: float | Tensor) -> None:
        """Multiply every gradient by `ratio`, a number or a tensor of shape ()."""
        if gradients := kernels.local_gradients(self.all_parameters):
            if isinstance(ratio, Tensor):
                ratio = ratio.to(gradients[0].device)  # sharded ones may be kept on the host
            torch._foreach_mul_(gradients, ratio)

    def _plan_passes(self) -> list[tuple[str | None, list[nn.Parameter] | None]]:
        """Return the backward passes in order: (a loss, its parameters). None stands for the sum, and for all."""
        if not self.name and all(entry.losses is None for entry in self.entries.values()):
            return [(None, None)]
        by_losses = {name: entry.losses for name, entry in self.entries.items()}
        summed = [p for name, losses in by_losses.items() if losses is None for p in self.parameters[name]]
        passes: list[tuple[str | None, list[nn.Parameter] | None]] = [(None, summed)] if summed else []
        for loss in dict.fromkeys(loss for losses in by_losses.values() for loss in losses or ()):
            followers = [name for name, losses in by_losses.items() if loss in (losses or ())]
            passes.append((loss, [p for name in followers for p in self.parameters[name]]))
        return passes


class Optimizers:
    """Applies updates to the parameters of a task.

    Args:
        entries: the optimizers by name.
        schedules: the values of their scheduled fields.
        precision: owns the loss scaler.
        skip_non_finite: do not apply an update whose loss or gradient is NaN or infinite for another reason than a
            too large loss scale. Synchronises with the device in every update.
        order: the names of those that take turns in an update, one list for each update, again and again; empty: all
            update at once.

    Raises:
        ConfigError: an optimizer evaluates the loss itself, and a setting does not allow that.
    """

    def __init__(
        self,
        entries: Mapping[str, OptimizerEntry],
        schedules: FieldSchedules,
        precision: Precision,
        *,
        skip_non_finite: bool = False,
        order: Sequence[Sequence[str]] = (),
    ) -> None:
        self.entries = dict(entries)
        self.whole = Turn(self.entries, precision)
        turns = {name: Turn({name: self.entries[name]}, precision, name) for names in order for name in names}
        self.turns = list(turns.values()) or [self.whole]
        self.cycle = [[turns[name] for name in names] for names in order] or [[self.whole]]
        self.schedules = schedules
        self.built = {name: self._settings(name) for name in self.entries}
        """The fields of each group, as the config has made them, without tensors and what schedules write."""
        self._precision = precision
        self.skips_non_finite = skip_non_finite
        self.scales_loss = precision.scales_loss
        self.may_skip = skip_non_finite or self.scales_loss
        self._always_clips = self.may_skip or any(e.clipping.key is not None for e in entries.values())
        self._with_modes = [o for o in self.whole.steps if kernels.has_modes(o)]
        self.mode_parameters = [p for o in self._with_modes for g in o.param_groups for p in g["params"]]
        """The weights of optimizers with modes."""
        self._set_train_weights(self._train_weights())
        self.with_closure = next(filter(kernels.needs_closure, self.whole.steps), None)
        """The optimizer that evaluates the loss itself, if any: it is alone."""
        if self.with_closure is not None:
            self._check_closure(self.with_closure)

    def _settings(self, name: str) -> list[dict[str, Any]]:
        scheduled = {(n, field) for owner, n, field in self.schedules.fields if owner == name}
        optimizer = self.entries[name].optimizer
        return [
            {k: "auto" if optimizer.defaults.get(k) == "auto" else v for k, v in items_of(group).items()
             if k != "params" and not isinstance(v, Tensor) and (n, k) not in scheduled}
            for n, group in enumerate(optimizer.param_groups)
        ]  # fmt: skip

    @property
    def leaves_parameters_out(self) -> bool:
        """Whether a backward pass leaves parameters out, because optimizers follow single losses or take turns."""
        return self.turns != [self.whole] or any(entry.losses is not None for entry in self.entries.values())

    def update(
        self, turn: Turn, num_updates: int, accumulate: Accumulate, all_reduce: AllReduce, *, measure: bool
    ) -> Update:
        """Make a turn of the update after `num_updates` completed ones: write the schedules, accumulate, clip and step.

        Args:
            turn: the optimizers to update.
            num_updates: completed updates.
            accumulate: adds the gradients; it gives the same ones however often it is called.
            all_reduce: sums a tensor over the ranks.
            measure: compute the gradient norms even if clipping does not need them.
        """
        self.schedules.write(num_updates)
        if self.with_closure is not None:
            return self._update_with_closure(self.with_closure, turn, accumulate, all_reduce, measure)
        turn.clear_gradients()
        outcomes, stop = accumulate()
        if self.skips_non_finite and not mean_loss(outcomes, all_reduce).isfinite():
            return Update(outcomes, stop, "not_finite", {})
        norms = self._clip(turn, measure) if measure or self._always_clips else {}
        checks_norms = self.skips_non_finite and not self._precision.scales_loss
        if checks_norms and not torch.stack(list(norms.values())).isfinite().all():
            return Update(outcomes, stop, "not_finite", {})
        return Update(outcomes, stop, "applied" if self._precision.step(turn.steps) else "overflowed", norms)

    @contextlib.contextmanager
    def eval_weights(self) -> Generator[None]:
        """Give the parameters the values to evaluate and to save; afterwards restore them bit for bit.

        The values only differ for optimizers with `train()` and `eval()` modes, such as schedule-free ones (Defazio et
        al., "The road less scheduled", 2024).
        """
        weights = self._train_weights()
        for optimizer in self._with_modes:
            optimizer.eval()
        try:
            yield
        finally:
            self._set_train_weights(weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizers": {name: entry.optimizer.state_dict() for name, entry in self.entries.items()},
            "schedules": self.schedules.state_dict(),
            "steps": {name: entry.step.state_dict() for name, entry in self.entries.items()},
            "trained_weights": self._train_weights(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizers. The scheduled fields are not restored, because every update writes them first."""
        for name, entry in self.entries.items():
            kernels.restore(entry.optimizer, state["optimizers"][name])
            entry.step.load_state_dict(state["steps"][name])
        self.schedules.load_state_dict(state["schedules"])
        self._set_train_weights(state["trained_weights"])

    def _update_with_closure(
        self, optimizer: Optimizer, turn: Turn, accumulate: Accumulate, all_reduce: AllReduce, measure: bool
    ) -> Update:
        """Make the update of an optimizer that evaluates the loss itself; return its first evaluation."""
        evaluations: list[Update] = []

        def closure() -> Any:  # a tensor, as LBFGS needs
            turn.clear_gradients()
            outcomes, stop = accumulate()
            evaluations.append(Update(outcomes, stop, "applied", self._clip(turn, measure)))
            return mean_loss(outcomes, all_reduce)

        optimizer.step(closure)
        return evaluations[0]._replace(stop=evaluations[-1].stop)

    def _clip(self, turn: Turn, measure: bool) -> dict[str, Tensor]:
        """Unscale and clip the gradients; return their norms before clipping, if they are measured or needed."""
        norms: dict[str, Tensor] = {}
        for name, entry in turn.entries.items():
            self._precision.unscale(entry.optimizer)
            parameters, norm = turn.parameters[name], None
            if measure or self.skips_non_finite or entry.clipping.max_norm is not None:
                norms[f"{metric_prefix(name)}grad_norm"] = norm = kernels.gradient_norm(parameters)
            entry.clipping(parameters, norm)
        return norms

    def _check_closure(self, optimizer: Optimizer) -> None:
        """Raise a ConfigError if a setting does not allow an optimizer that evaluates the loss itself."""
        name = next(name for name, entry in self.entries.items() if entry.optimizer is optimizer)
        reason = f"{type(optimizer).__name__} evaluates the loss several times an update, which rules out"
        own_key = f"{config_prefix(name)}optimizer"
        obstacles = (
            (self._precision.scales_loss, "precision", "a loss scaler", "use precision=bf16 or fp32"),
            (len(self.entries) > 1, own_key, "other optimizers", "choose another one"),
            (self.skips_non_finite, "skip_non_finite", "skipped updates", "use skip_non_finite=false"),
        )
        for is_given, key, obstacle, remedy in obstacles:
            if is_given:
                raise ConfigError(key, f"{reason} {obstacle}", remedy=remedy)

    def _train_weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.mode_parameters]

    def _set_train_weights(self, weights: list[Tensor]) -> None:
        for optimizer in self._with_modes:
            optimizer.train()
        for parameter, value in zip(self.mode_parameters, weights, strict=True):
            parameter.data.copy_(value)
