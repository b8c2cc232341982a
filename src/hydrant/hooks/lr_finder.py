"""Find a learning rate: let it grow, and look where the loss falls fastest."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydrant.batch import Outcome
from hydrant.errors import ConfigError, log
from hydrant.files.plain_values import Growing, RatioBelowOne
from hydrant.optimizers.scheduled_fields import FieldSchedules
from hydrant.training.trainer import Plan, Trainer


class LrFinder:
    """The range test of Smith, "Cyclical learning rates", 2017: draws the loss over an lr that grows, and suggests one.

    The run ends when the loss is `max_growth` times its least value. `debug=lr_finder` sets the rest of such a run: a
    schedule that grows, and no checkpoints.

    Args:
        smoothing: the weight of the earlier losses in their moving average, from 0 to below 1.
        max_growth: end when the loss is this many times its least value; above 1.
    """

    def __init__(self, *, smoothing: RatioBelowOne, max_growth: Growing) -> None:
        self._smoothing, self._max_growth = smoothing, max_growth
        self._losses: list[Tensor] = []  # of the micro-batches of this update
        self._average = 0.0
        self._lrs: list[float] = []
        self._curve: list[float] = []  # the smoothed loss at each lr

    def check(self, plan: Plan) -> None:
        """Check that the lr is above 0 and grows in every update.

        Raises:
            ConfigError: it does not.
        """
        lrs = (_lr(plan.optimizers.schedules, n) for n in range(plan.clock.total_updates))
        if any(lr <= before for before, lr in itertools.pairwise(itertools.chain([0.0], lrs))):
            message = "lr_finder needs an lr above 0 that grows in every update"
            raise ConfigError("scheduler", message, remedy="debug=lr_finder has one")

    def on_start(self, trainer: Trainer) -> None:
        """Observe the losses of the task in training."""

        def observe(task: Any, inputs: Any, outcome: Outcome) -> None:
            del inputs
            if task.training:  # a copy, because CUDA graphs reuse the memory
                self._losses.append(outcome.total_loss().detach().float().clone())

        trainer.task.register_forward_hook(observe)

    def before_update(self, trainer: Trainer, num_updates: int) -> None:
        """Forget the losses of calls outside of updates, such as those that check a compiled task."""
        del trainer, num_updates
        self._losses = []

    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """Add a point to the curve."""
        mean = trainer.plan.parallel.all_reduce(torch.stack(self._losses).mean())
        loss = float(mean) / trainer.plan.world.world_size
        self._average = self._smoothing * self._average + (1 - self._smoothing) * loss
        self._curve.append(self._average / (1 - self._smoothing**num_updates))
        self._lrs.append(_lr(trainer.optimizers.schedules, num_updates - 1))
        if not self._curve[-1] <= self._max_growth * min(self._curve):  # also if it is NaN
            trainer.end(f"lr_finder: the loss is {self._max_growth:g} times its least value")

    def on_end(self, trainer: Trainer) -> None:
        """Draw the curve and log the suggestion."""
        suggestion = steepest_lr(self._lrs, self._curve)
        trainer.log.picture("lr_finder", partial(_draw, self._lrs, self._curve, suggestion))
        if suggestion is None:
            log.warning("lr_finder: the loss does not fall at any lr, so there is no suggestion")
            return
        trainer.log.row({"lr_finder/lr": suggestion})
        log.info("lr_finder: the loss falls fastest at optimizer.lr=%.2g", suggestion)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "lrs": self._lrs, "curve": self._curve}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._average, self._lrs, self._curve = state["average"], state["lrs"], state["curve"]


def _lr(schedules: FieldSchedules, update: int) -> float:
    """Return the largest lr of the optimizers in an update; 0 if no schedule sets one."""
    values = schedules.values(update)
    return max((value for name, value in values.items() if name.endswith("lr")), default=0.0)


def steepest_lr(lrs: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the lr at which the loss falls fastest over log(lr); None if it never falls.

    >>> steepest_lr([0.001, 0.01, 0.1, 1.0], [2.0, 1.9, 0.5, 3.0])
    0.01
    """
    slopes = {
        lr: (after - before) / math.log(next_lr / last_lr)
        for lr, last_lr, next_lr, before, after in zip(
            lrs[1:], lrs, lrs[2:], losses, losses[2:], strict=False
        )
        if math.isfinite(after)
    }
    best = min(slopes, key=lambda lr: slopes[lr], default=None)
    return None if best is None or slopes[best] >= 0 else best


def _draw(lrs: Sequence[float], losses: Sequence[float], suggestion: float | None, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(lrs, losses)
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    if suggestion is not None:
        axes.axvline(suggestion, linestyle="--", label=f"steepest at {suggestion:.2g}")
        axes.legend()
    figure.savefig(path)
