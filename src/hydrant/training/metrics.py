"""The metrics of training: their names, means that accumulate on the device, values from predictions, and the speed."""

import contextlib
import copy
import itertools
import math
import operator
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from hydrant.batch import AllReduce, Batch, Outcome
from hydrant.errors import ConfigError, log, shown, traced
from hydrant.training.costs import synchronize

_MAX_PENDING = 64  # calls of `add` whose values are summed together, which saves kernel launches
_MAX_FLAGS = 65536  # entries of a bool tensor that is kept until then; a larger one is reduced at once


class Meter:
    """Weighted means of named scalars, and of the fractions of bool tensors that are true, since the last read.

    >>> meter = Meter(torch.device("cpu"))
    >>> meter.add({"loss": torch.tensor(1.0)}, weight=1)
    >>> meter.add({"loss": torch.tensor(4.0)}, weight=3)
    >>> meter.read(), meter.read()
    ({'loss': 3.25}, {})
    """

    def __init__(self, device: torch.device, all_reduce: AllReduce = lambda sums: sums) -> None:
        self._device = device
        self._all_reduce = all_reduce
        self._names: list[str] = []
        self._sums = torch.zeros(0, dtype=torch.float64, device=device)
        self._weight: int | Tensor = 0  # of the sums
        self._pending: list[Tensor] = []  # not yet in the sums: the values of one call after the other
        self._pending_weight = 0  # of each of these calls
        self._last_sums = self._sums  # of this rank, at the last read
        self._is_restored = False  # whether what is not read yet is that of a checkpoint

    def add(self, values: Mapping[str, Tensor], weight: int | Tensor) -> None:
        """Add the means of `weight` targets: scalars, shape (), or bool tensors of any shape.

        Weight 0 only registers the names, because a mean over no targets is NaN. If the weight is a tensor, shape (),
        the means are finite.

        Raises:
            ConfigError: the names have changed since the last read.
        """
        if self._names != list(values):
            if isinstance(weight, int) and not weight and self._is_used:
                return
            if set(self._names) == set(values):
                values = {name: values[name] for name in self._names}
            else:
                self._register(list(values))
        if isinstance(weight, Tensor):
            row = torch.stack([_column(name, [value.detach()])[0] for name, value in values.items()])
            self._sums = self._sums + row * weight
            self._weight = self._weight + weight.detach()
            return
        if not weight:
            return
        if weight != self._pending_weight:
            self._fold()
            self._pending_weight = weight
        self._pending += map(_snapshot, values.values())
        if len(self._pending) >= _MAX_PENDING * len(values):
            self._fold()

    def add_sums(self, names: Sequence[str], sums: Tensor, weight: int | Tensor) -> None:
        """Add what several calls of `add` would, which was summed elsewhere.

        Args:
            names: of the sums.
            sums: of the means times the number of their targets, (names,) float64.
            weight: the number of all these targets.
        """
        if self._names != list(names):
            self._register(list(names))
        if self._pending:
            self._fold()
        self._sums = self._sums + sums
        self._weight = self._weight + weight

    def _register(self, names: list[str]) -> None:
        """Take the names of the next calls. What a checkpoint had under others is left out, with its weight.

        Raises:
            ConfigError: values with other names were added since the last read, so no mean would be over all targets.
        """
        if self._is_used and not self._is_restored:
            message = f"gives {', '.join(names)} for a batch and {', '.join(self._names)} for others"
            remedy = "give the same names for every batch, and 0 times a loss that does not count yet"
            raise ConfigError("task", message, remedy=remedy)
        if self._is_used:
            log.warning("the task measures other values than before: the next row begins at the checkpoint")
        self._names, self._pending, self._weight, self._is_restored = names, [], 0, False
        self._sums = torch.zeros(len(names), dtype=torch.float64, device=self._device)

    @property
    def _is_used(self) -> bool:
        """Whether values were added since the last read."""
        return isinstance(self._weight, Tensor) or bool(self._weight or self._pending)

    def read(self, unreduced: Mapping[str, Tensor] = {}) -> dict[str, float]:
        """Return the means over all ranks and the scalars in `unreduced`, with one synchronisation; then reset."""
        if not self._names:  # the same on every rank
            return {}
        self._fold()
        weight = self._sums.new_ones(1) * self._weight  # a copy of a number from the host would be waited for
        weighted = torch.cat([self._sums, weight])
        extra = [v.detach().to(self._device, torch.float64).reshape(1) for v in unreduced.values()]
        numbers: list[float] = torch.cat([self._all_reduce(weighted), *extra]).tolist()
        count = len(self._names)
        self._last_sums, self._sums, self._weight = self._sums, torch.zeros_like(self._sums), 0
        self._is_restored = False
        if not numbers[count]:
            return {}
        means = {name: total / numbers[count] for name, total in zip(self._names, numbers, strict=False)}
        return means | dict(zip(unreduced, numbers[count + 1 :], strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return what was added since the last read, so that a resumed run logs the same numbers bit for bit."""
        return {
            "names": list(self._names),
            "sums": self._sums.clone(),
            "weight": self._weight,
            "pending": self._pending_rows(),
            "pending_weight": self._pending_weight,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._names, self._weight, self._is_restored = list(state["names"]), state["weight"], True
        self._sums = state["sums"].to(self._device)
        self._pending = list(state["pending"].to(self._device).flatten().unbind())
        self._pending_weight = state["pending_weight"]

    def first_non_finite(self) -> str | None:
        """Return the first name whose sum on this rank is NaN or infinite; synchronises.

        The sums are those since the last read or, if nothing was added, those at the last read.
        """
        sums = self._last_sums
        if self._weight or self._pending:
            sums = self._sums + self._pending_rows().sum(0)
        totals = zip(self._names, sums.tolist(), strict=False)
        return next((name for name, total in totals if not math.isfinite(total)), None)

    def _pending_rows(self) -> Tensor:
        """Return what is not yet in the sums, one row per call; float64."""
        if not self._pending:
            return self._sums.new_zeros(0, len(self._names))
        count = len(self._names)
        columns = [_column(name, self._pending[at::count]) for at, name in enumerate(self._names)]
        return torch.stack(columns, dim=1)

    def _fold(self) -> None:
        """Add what is pending to the sums. Rounding depends on when, so only the calls of this meter decide it."""
        rows = self._pending_rows()
        self._sums.add_(rows.sum(0), alpha=self._pending_weight)
        self._weight += len(rows) * self._pending_weight
        self._pending = []


def _snapshot(value: Tensor) -> Tensor:
    """Return a value to add later. A parameter, a buffer or a view is copied, because it may be overwritten."""
    if value.dtype is torch.bool and value.numel() > _MAX_FLAGS:
        return value.mean(dtype=torch.float64)
    is_result = value.grad_fn is not None and not value._is_view()
    if is_result:
        return value.detach()
    return value.detach().clone() if value.requires_grad else value.clone()


def check_measurement(name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Raise a ConfigError unless a loss or measurement is one number or a bool tensor."""
    if dtype is not torch.bool and math.prod(shape) != 1:
        message = f"gives {dtype} of shape {list(shape)} as the loss or measurement {name!r}, not one number"
        raise ConfigError("task", message, remedy="give its mean over the targets")


def mean_over_targets(values: Tensor) -> Tensor:
    """Return the mean over all dimensions but the first, float64: of numbers, (N,), or of bools, (N, ...)."""
    return values.reshape(len(values), -1).mean(dim=1, dtype=torch.float64)


def _column(name: str, values: Sequence[Tensor]) -> Tensor:
    """Return the values of one name as scalars, (N,) float64. The fractions of bool tensors are exact."""
    parts = [torch.stack([*same]) for _, same in itertools.groupby(values, key=operator.attrgetter("shape"))]
    for part in parts:
        check_measurement(name, part.dtype, part.shape[1:])
    return torch.cat([mean_over_targets(part) for part in parts])


def merge_meters(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of one meter that received what several meters did."""
    whole = states[0] | {"pending": states[0]["pending"][:0], "pending_weight": 0}
    used = [state for state in states if state["weight"] or len(state["pending"])]
    if not used:
        return whole
    sums = [state["sums"] + state["pending"].sum(0) * state["pending_weight"] for state in used]
    weight = sum(state["weight"] + len(state["pending"]) * state["pending_weight"] for state in used)
    return whole | {"names": used[0]["names"], "sums": torch.stack(sums).sum(0), "weight": weight}


class Pace:
    """Updates per second of training, without the time of evaluation and saving.

    Args:
        num_updates: completed updates.
        device: where training runs.
    """

    def __init__(self, num_updates: int, device: torch.device) -> None:
        self.logged_at, self._device = num_updates, device
        self._since = time.perf_counter()
        self._paused_seconds = 0.0

    @contextlib.contextmanager
    def paused(self, *, waits: bool = True) -> Generator[None]:
        """Return a context whose time is not counted.

        `waits`: wait before it for the training that is still queued on the device, whose time is counted.
        """
        if waits:
            synchronize(self._device)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._paused_seconds += time.perf_counter() - started

    def skip(self, seconds: float) -> None:
        """Do not count this time, because other runs used it."""
        self._paused_seconds += seconds

    def read(self, num_updates: int) -> float:
        """Return the updates per second since the last read; then reset."""
        now = time.perf_counter()
        rate = (num_updates - self.logged_at) / max(now - self._since - self._paused_seconds, 1e-9)
        self.logged_at, self._since, self._paused_seconds = num_updates, now, 0.0
        return rate


OWN_GROUPS = ("train", "val", "val_ema", "test", "test_ema", "optim", "perf", "compile")
"""The groups of metrics that a run writes itself."""


def is_own(name: str) -> bool:
    """Return whether a metric is in a group that the run writes itself, such as `val/accuracy`."""
    group, slash, _ = name.partition("/")
    return bool(slash) and group in OWN_GROUPS


def plain_name(name: str) -> str:
    """Return the name of a metric as every file and tracker can hold it. A class may have any name on the disk.

    >>> plain_name("f1/größer"), plain_name("f1/gr\\udcf6sser")
    ('f1/größer', 'f1/gr\\\\udcf6sser')
    """
    return name.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def named_values(key: str, value: Any, class_names: Sequence[str] | None = None) -> dict[str, float]:
    """Return what a metric has computed as numbers by name. The values of a dict or a vector follow after a slash.

    Args:
        key: the name of the metric.
        value: a number, a tensor, or a nested dict of them.
        class_names: of the data; they name the entries of a vector that has one for each class.

    Raises:
        ConfigError: the value is none of these, such as a matrix.

    >>> named_values("f1", torch.tensor(0.5)), named_values("f1", {"cat": 0.5, "dog": 1})
    ({'f1': 0.5}, {'f1/cat': 0.5, 'f1/dog': 1.0})
    >>> named_values("f1", torch.tensor([0.5, 0.25])), named_values("f1", torch.tensor([0.5, 0.25]), ["cat", "dog"])
    ({'f1/0': 0.5, 'f1/1': 0.25}, {'f1/cat': 0.5, 'f1/dog': 0.25})
    """
    if isinstance(value, Mapping):
        values = cast("Mapping[Any, Any]", value)
        parts = (named_values(f"{key}/{name}", part, class_names) for name, part in values.items())
        return {name: number for part in parts for name, number in part.items()}
    if isinstance(value, Tensor) and value.ndim == 1 and not value.is_complex():
        has_names = class_names is not None and len(class_names) == len(value)
        names = class_names if has_names else range(len(value))
        return {f"{key}/{name}": one for name, one in zip(names or (), value.double().tolist(), strict=True)}
    if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
        return {key: float(value)}
    result = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else shown(value)
    message = f"computes {result}; an evaluation logs a number, a vector, or a dict of them"
    raise ConfigError(f"task.metrics.{key.partition('/')[0]}", message)


def try_metrics(task: Any, batch: Batch, outcome: Outcome) -> list[str]:
    """Update a copy of each metric of a task with a batch, on the host; return the names of the values.

    A metric that computes nothing for so few samples is taken to have one value.

    Raises:
        ConfigError: a metric does not fit the predictions and targets, or computes no numbers.
    """
    names: list[str] = []
    for name, metric in cast("nn.ModuleDict", task.metrics).items():
        trial: Any = _unsynchronized(metric)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # few samples need not hold every class
            try:
                trial.reset()
                trial.update(outcome.predictions, batch.targets)
            except Exception as error:  # a metric may raise anything
                message = f"does not fit the predictions and targets: {traced(error)}"
                raise ConfigError(f"task.metrics.{name}", message) from error
            try:
                value = trial.compute()
            except Exception:  # such as too few samples for its formula
                value = 0.0
        names += named_values(name, value, task.class_names)
    return names


def _unsynchronized(metric: nn.Module) -> nn.Module:
    """Return a copy of a metric that computes its value from the samples of this rank alone."""
    trial = copy.deepcopy(metric)
    for module in trial.modules():
        if hasattr(module, "sync_on_compute"):  # a torchmetrics.Metric
            module.sync_on_compute = module._to_sync = False  # pyrefly: ignore[bad-argument-type]  # of a Metric
    return trial
