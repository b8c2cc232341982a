"""Hooks: freezing weights, diagnostics of updates, samples of a model, and the early end of a run.

docs/guides/hooks.md describes the methods of a hook.
"""

import itertools
import math
import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import Outcome, as_real
from hydrant.clock import Duration
from hydrant.config.metric_keys import Target, parse_target
from hydrant.errors import ConfigError, first_line, log, shown, suggestion
from hydrant.files.plain_values import AboveOne, RatioBelowOne
from hydrant.optimizers.kernels import is_sharded, local_tensors
from hydrant.optimizers.scheduled_fields import FieldSchedules
from hydrant.runs.folder import STOPPED_BY_RULE
from hydrant.training.reports import eager_evaluation
from hydrant.training.trainer import Plan, Trainer


@dataclass(frozen=True)
class _Stage:
    match: str
    until: Any = None

    def __post_init__(self) -> None:
        re.compile(self.match)
        if self.until is not None:
            Duration.parse(self.until, "stages")


class Freeze:
    """Keeps weights as they are until an update, or for the whole run.

    A frozen weight has no gradient, so no optimizer changes it, not even by weight decay, and its optimizer state
    begins when it trains. What is frozen depends on the number of updates only, so a resumed run continues exactly.
    Running statistics of batch norm are not weights and continue to be updated. A run has at most one such hook.

    Args:
        stages: each has `match`, a regular expression for the beginning of names, and maybe `until`, a duration.
            Without `until` it holds for the whole run. A weight is frozen as long as any stage freezes it.

    Raises:
        ConfigError: a stage has another form.
    """

    def __init__(self, *, stages: Sequence[Any]) -> None:
        self._stages = list[_Stage]()
        for stage in stages:
            try:
                self._stages.append(_Stage(**stage))
            except (TypeError, re.error) as error:
                message = f"{shown(stage)} is not a stage: {first_line(error)}"
                raise ConfigError("stages", message, remedy="write {match: backbone, until: 2ep}") from error
        self.every = [stage.until for stage in self._stages if stage.until is not None]
        self._ends: list[float] = []  # the first update that trains the weights of each stage
        self._trainable: list[str] = []  # the parameters that the model itself trains

    def check(self, plan: Plan) -> None:
        """Check that the stages fit the model and the run.

        Raises:
            ConfigError: a pattern matches nothing, the weights cannot be frozen, or another hook freezes weights too.
        """
        if len(hooks := plan.hooks.of(Freeze)) > 1:
            message = f"the hooks {' and '.join(hooks)} all freeze weights"
            raise ConfigError("stages", message, remedy="put all stages into one hook")
        if plan.optimizers.leaves_parameters_out:
            message = "weights cannot be frozen if optimizers follow single losses or take turns"
            raise ConfigError("stages", message, remedy="leave losses and update_order out")
        self._ends = [
            math.inf if stage.until is None else plan.clock.updates(stage.until, "stages")
            for stage in self._stages
        ]
        names = [name for name, p in plan.task.model.named_parameters() if p.requires_grad]
        for stage in self._stages:
            if not any(re.match(stage.match, name) for name in names):
                hint = suggestion(stage.match, names, "Weights")
                raise ConfigError("stages", f"{shown(stage.match)} matches no trained weight", remedy=hint)

    def on_start(self, trainer: Trainer) -> None:
        """Freeze the weights that are frozen at the update where the run starts or resumes."""
        self._trainable = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
        self._apply(trainer, trainer.state.num_updates)

    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """Unfreeze the weights whose stages end at this update."""
        self._apply(trainer, num_updates)

    def _apply(self, trainer: Trainer, num_updates: int) -> None:
        parameters = dict(trainer.model.named_parameters())
        stages = [s for s, end in zip(self._stages, self._ends, strict=True) if num_updates < end]
        for name in self._trainable:
            parameters[name].requires_grad_(not any(re.match(stage.match, name) for stage in stages))
        # DDP reduces only those gradients that were needed when it was made.
        trainer.trained = trainer.plan.parallel.wrap_again(trainer.task)
        total = sum(parameters[name].numel() for name in self._trainable)
        num_frozen = sum(parameters[n].numel() for n in self._trainable if not parameters[n].requires_grad)
        log.info(
            "from update %d: %s of %s weights are frozen", num_updates + 1, f"{num_frozen:,}", f"{total:,}"
        )


_EPS = 1e-30  # instead of a division by 0


class Diagnostics:
    """Logs, for each layer with weights that train, every `every`:

    - `update_ratio/<layer>`: the 2-norm of the update over that of the weights before it. 1e-3 is usual.
    - `weight_rms/<layer>`, `gradient_rms/<layer>`: root mean squares; of the gradient after clipping.
    - `gradient_cosine/<layer>`: the cosine of the angle between this gradient and the last logged one.
      Near 1 the gradients agree, so a larger lr may do; below 0 the updates go back and forth.

    It copies the weights during an update that is logged, and keeps a copy of the gradients until the next such update,
    also in checkpoints. Of sharded weights, each rank copies its shard. Other updates cost nothing.

    Args:
        every: a duration; None: each update.
    """

    def __init__(self, *, every: Any) -> None:
        self.every = every
        self._weights: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}  # of the update that was logged last

    def before_update(self, trainer: Trainer, num_updates: int) -> None:
        """Copy the weights."""
        del num_updates
        named = trainer.model.named_parameters()
        self._weights = {name: p.detach().clone() for name, p in named if p.requires_grad}

    @torch.no_grad()
    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """Log the numbers, with one transfer from the device."""
        del num_updates
        sums: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        for name, parameter in trainer.model.named_parameters():
            if name not in self._weights or parameter.grad is None:
                continue
            gradient = parameter.grad.detach()
            gradient = gradient.clone() if is_sharded(gradient) else gradient.to_dense().clone()
            before = self._gradients.get(name, torch.zeros_like(gradient)).to(gradient.device)
            layer = name.rpartition(".")[0] or name
            values = _sums(*local_tensors([self._weights[name], parameter, gradient, before]))
            sums[layer] = sums[layer] + values if layer in sums else values
            gradients[name] = gradient
        self._gradients, self._weights = gradients, {}
        if not sums:
            return
        totals, parallel = torch.stack(list(sums.values())), trainer.plan.parallel
        # A shard on several ranks counts several times in every sum, but not in ratios of sums.
        if parallel.is_sharded:
            totals = parallel.all_reduce(totals.to(trainer.plan.world.device))
        rows: list[list[float]] = totals.tolist()
        for layer, row in zip(sums, rows, strict=True):
            trainer.log.row(_metrics(layer, *row))

    def state_dict(self) -> dict[str, Any]:
        return {"gradients": self._gradients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._gradients = dict(state["gradients"])


def _sums(old: Tensor, new: Tensor, gradient: Tensor, before: Tensor) -> Tensor:
    """Return the count and the sums of squares and products that the numbers of a layer are made of, (6,) float64."""
    old, new, gradient, before = (as_real(t).double() for t in (old, new, gradient, before))
    change = new - old
    products = [old * old, change * change, gradient * gradient, before * before, gradient * before]
    return torch.stack([old.new_tensor(old.numel()), *(product.sum() for product in products)])


def _metrics(
    layer: str, count: float, weights: float, changes: float, gradients: float, before: float, product: float
) -> dict[str, float]:
    metrics = {
        f"update_ratio/{layer}": (changes / max(weights, _EPS)) ** 0.5,
        f"weight_rms/{layer}": (weights / count) ** 0.5,
        f"gradient_rms/{layer}": (gradients / count) ** 0.5,
    }
    if before and gradients:  # there is an earlier gradient, and the angle exists
        metrics[f"gradient_cosine/{layer}"] = product / (gradients * before) ** 0.5
    return metrics


class Samples:
    """Calls `function(model)` after each evaluation, and logs the pictures and texts that it returns.

    The model is eager and as in the evaluation: in evaluation mode, without gradients, in the precision of the run. The
    random numbers of torch are the same each time, so the samples of two updates can be compared.

    Args:
        function: called with the model; returns pictures and texts by name. A picture is what `trainer.log.picture`
            takes.
    """

    def __init__(self, *, function: Callable[[nn.Module], Mapping[str, Any]]) -> None:
        self._function = function

    def check(self, plan: Plan) -> None:
        """Check that the run is evaluated.

        Raises:
            ConfigError: it is not.
        """
        plan.check_evaluates("samples are made after evaluations")

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """Make the samples and log them."""
        del row
        plan = trainer.plan
        seeding.seed_evaluation(plan.world.rank, plan.world.device)
        with eager_evaluation(trainer):
            samples = self._function(trainer.model)
        for name, sample in samples.items():
            (trainer.log.text if isinstance(sample, str) else trainer.log.picture)(name, sample)


class StopAt:
    """Ends the run at the first row that reaches `metric`, or once it has trained for `time`.

    Args:
        metric: end at the first evaluation or log point that reaches it: `val/accuracy>=0.95` or `train/loss<=0.1`. The
            evaluation of the untrained model does not count.
        time: `90s`, `30min`, `2h` or `1d` of training, over all starts of the run. Rank 0 has the clock. A run that
            ends by the time is no function of its config: on a faster machine it makes more updates.
        every: updates, or another duration, between looks at the clock.

    Raises:
        ConfigError: one is not as above.
    """

    def __init__(self, *, metric: str | None, time: str | None, every: Any) -> None:
        self.every = every
        self._target: Target | None = None if metric is None else parse_target(metric, "metric")
        self._limit = None if time is None else _parse_time(time)
        self._limit_text = time
        self._seconds_before, self._started_at = 0.0, 0.0

    def check(self, plan: Plan) -> None:
        """Check that evaluations give the metric, or log points, which have the same ones but those of torchmetrics.

        Raises:
            ConfigError: they do not.
        """
        if self._target is not None:
            name, metric = self._target.metric.removeprefix("train/"), self._target.metric
            is_logged = name not in (metric, *plan.task.metrics)
            plan.check_metric("metric", f"val/{name}" if is_logged else metric)
            plan.check_evaluates("stop_at waits for its rows", "log_every" if is_logged else "eval_every")

    def on_start(self, trainer: Trainer) -> None:
        """Start the clock."""
        del trainer
        self._started_at = time.monotonic()

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """End the run if the metric is reached."""
        if self._target is not None and row["num_updates"] and self._target.is_reached(row):
            trainer.end(f"stop_at: {self._target.metric} {row[self._target.metric]:g}, {self._target}")

    on_log = on_evaluation

    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """End the run if its time is over."""
        del num_updates
        limit, broadcast = self._limit, trainer.plan.world.broadcast_from_rank_zero
        if limit is not None and broadcast(lambda: self._seconds() >= limit):
            trainer.end(f"stop_at: {self._limit_text} of training are over")

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seconds_before = state["seconds"]

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started_at


def _parse_time(text: str) -> float:
    duration = Duration.parse(text, "time")
    if duration.unit != "s":
        raise ConfigError("time", f"{shown(text)} is not a time", remedy="write 90s, 30min, 2h or 1d")
    return float(duration.amount)


_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RULE = re.compile(rf"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*({_NUMBER})(?:\s+after\s+(\S+))?\s*")


class StopIf:
    """Ends the run at the first evaluation for which the rule holds. The run is `stopped`, not finished.

    A metric that is NaN or infinite is hopeless too. All ranks have the same metrics, so they agree.

    Args:
        rule: `val/loss > 5 after 200` ends it if `val/loss` is above 5 after 200 updates or more. The duration may
            be any, such as `2ep` or `10%`; without it, the rule holds from the first update on. Also `<`, `>=`, `<=`.

    Raises:
        ConfigError: the rule is not as above.
    """

    def __init__(self, *, rule: str) -> None:
        match = _RULE.fullmatch(rule)
        if match is None:
            raise ConfigError("rule", f"{rule!r} is no rule", remedy="write 'val/loss > 5 after 200'")
        self._rule = " ".join(rule.split())
        self._metric, self._sign, self._value, self._after = match[1], match[2], float(match[3]), match[4]
        self._first = 1

    def check(self, plan: Plan) -> None:
        """Check that evaluations give the metric, and compute from which update on the rule counts.

        Raises:
            ConfigError: they do not, or `after` is no duration.
        """
        plan.check_metric("rule", self._metric, "reads evaluations only, and none gives")
        plan.check_evaluates("stop_if waits for evaluations")
        if self._after is not None:
            after: Any = int(self._after) if self._after.isdigit() else self._after
            self._first = max(plan.clock.updates(after, "rule"), 1) if after != 0 else 1

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """End the run if the rule holds."""
        value = row.get(self._metric)
        if value is None or row["num_updates"] < self._first:
            return
        if not math.isfinite(value) or _COMPARE[self._sign](value, self._value):
            trainer.end(f"{STOPPED_BY_RULE}{self._metric} {value:g} ({self._rule})")


class LrFinder:
    """The range test of Smith, "Cyclical learning rates", 2017: draws the loss over an lr that grows, and suggests one.

    The run ends when the loss is `max_growth` times its least value. `debug=lr_finder` sets the rest of such a run: a
    schedule that grows, and no checkpoints.

    Args:
        smoothing: the weight of the earlier losses in their moving average, from 0 to below 1.
        max_growth: end when the loss is this many times its least value; above 1.
    """

    def __init__(self, *, smoothing: RatioBelowOne, max_growth: AboveOne) -> None:
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
        lr: (after - before) / math.log(high / low)
        for lr, low, high, before, after in zip(lrs[1:], lrs, lrs[2:], losses, losses[2:], strict=False)
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
