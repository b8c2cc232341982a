"""Means that accumulate on the device and are read with one synchronisation, and the pace of a run."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydrant.errors import ConfigError

_MANY = 64  # adding them up takes as long as a few single additions
_MOST_FLAGS = 65536  # of one batch that are kept for later


class Meter:
    """Weighted means of named scalars, and of the shares of what is true, since the last read.

    >>> meter = Meter(torch.device("cpu"))
    >>> meter.add({"loss": torch.tensor(1.0)}, weight=1)
    >>> meter.add({"loss": torch.tensor(4.0)}, weight=3)
    >>> meter.read(), meter.read()
    ({'loss': 3.25}, {})
    """

    def __init__(self, device: torch.device, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> None:
        self._device = device
        self._reduce = reduce
        self._names: list[str] = []
        self._sums = torch.zeros(0, dtype=torch.float64, device=device)
        self._weight = 0  # of the sums
        self._pending: list[Tensor] = []  # not yet in the sums: the scalars of one call after the other
        self._pending_weight = 0  # of each of those calls
        self._read = self._sums  # of this rank alone, at the last read

    def add(self, values: Mapping[str, Tensor], weight: int) -> None:
        """Add what stands for `weight` targets: scalars, shape (), or flags, bool of any shape, whose share counts.

        The names are the same until the next read. Of no samples the names alone count: a mean over none is no number.
        """
        if self._names != list(values):
            self._names, self._pending = list(values), []
            self._sums = torch.zeros(len(values), dtype=torch.float64, device=self._device)
        if not weight:
            return
        if weight != self._pending_weight:
            self._fold()
            self._pending_weight = weight
        self._pending += map(_kept, values.values())
        if len(self._pending) >= _MANY * len(values):
            self._fold()

    def read(self, also: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """The means over all ranks, and the scalars in `also` as they are; the one synchronisation. Resets."""
        if not self._names:  # nor has any other rank
            return {}
        self._fold()
        weighted = torch.cat([self._sums, self._sums.new_full((1,), self._weight)])
        extra = [value.detach().to(self._device, torch.float64).reshape(1) for value in (also or {}).values()]
        numbers: list[float] = torch.cat([self._reduce(weighted), *extra]).tolist()
        count = len(self._names)
        self._read, self._sums, self._weight = self._sums, torch.zeros_like(self._sums), 0
        if not numbers[count]:
            return {}
        means = {name: total / numbers[count] for name, total in zip(self._names, numbers, strict=False)}
        return means | dict(zip(also or {}, numbers[count + 1 :], strict=True))

    def state_dict(self) -> dict[str, Any]:
        """What was added since the last read, so that a resumed run logs what an unbroken one does, bit for bit."""
        return {
            "names": list(self._names),
            "sums": self._sums.clone(),
            "weight": self._weight,
            "pending": self._pending_rows(),
            "pending_weight": self._pending_weight,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._names, self._weight = list(state["names"]), state["weight"]
        self._sums = state["sums"].to(self._device)
        self._pending = list(state["pending"].to(self._device).flatten().unbind())
        self._pending_weight = state["pending_weight"]

    def first_non_finite(self) -> str | None:
        """The first name whose sum on this rank, since the last read or at it, is NaN or infinite; synchronises."""
        sums = self._read
        if self._weight or self._pending:
            sums = self._sums + self._pending_rows().sum(0)
        return next(
            (n for n, s in zip(self._names, sums.tolist(), strict=False) if not math.isfinite(s)), None
        )

    def _pending_rows(self) -> Tensor:
        """What is not yet in the sums, a row for each call; float64."""
        if not self._pending:
            return self._sums.new_zeros(0, len(self._names))
        count = len(self._names)
        columns = [_column(name, self._pending[at::count]) for at, name in enumerate(self._names)]
        return torch.stack(columns, dim=1)

    def _fold(self) -> None:
        """Add what is pending to the sums; always after the same calls, for it decides how they are rounded."""
        rows = self._pending_rows()
        self._sums.add_(rows.sum(0), alpha=self._pending_weight)
        self._weight += len(rows) * self._pending_weight
        self._pending = []


def _kept(value: Tensor) -> Tensor:
    """A value for later. A parameter, a buffer or a part of something is copied: it may be written into."""
    if value.dtype is torch.bool and value.numel() > _MOST_FLAGS:
        return value.mean(dtype=torch.float64)
    is_made = value.grad_fn is not None and not value._is_view()  # pyright: ignore[reportPrivateUsage]
    if is_made:
        return value.detach()
    return value.detach().clone() if value.requires_grad else value.clone()


def check_measurement(name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Raises ConfigError for what is no mean, and no flags either."""
    if shape and dtype is not torch.bool:
        told = f"measures {name!r} as {dtype} of shape {list(shape)}; it is to be a scalar, or bool"
        raise ConfigError("task", told)


def _column(name: str, values: Sequence[Tensor]) -> Tensor:
    """The values of one name as scalars, (N,) float64: a share is exact, however many are counted at once."""
    parts = [torch.stack([*alike]) for _, alike in itertools.groupby(values, key=lambda value: value.shape)]
    for part in parts:
        check_measurement(name, part.dtype, part.shape[1:])
    return torch.cat([part.reshape(len(part), -1).mean(dim=1, dtype=torch.float64) for part in parts])


def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The states of several meters as one that has been given all of it."""
    whole = states[0] | {"pending": states[0]["pending"][:0], "pending_weight": 0}
    used = [state for state in states if state["weight"] or len(state["pending"])]
    if not used:
        return whole
    sums = [state["sums"] + state["pending"].sum(0) * state["pending_weight"] for state in used]
    weight = sum(state["weight"] + len(state["pending"]) * state["pending_weight"] for state in used)
    return whole | {"names": used[0]["names"], "sums": torch.stack(sums).sum(0), "weight": weight}


class Pace:
    """Updates per second of training alone: evaluation and saving are not counted."""

    def __init__(self, num_updates: int) -> None:
        self.logged_at = num_updates
        self._since = time.perf_counter()
        self._outside = 0.0

    def outside(self, work: Callable[[], Any]) -> Any:
        """Do something that is not training."""
        started = time.perf_counter()
        try:
            return work()
        finally:
            self._outside += time.perf_counter() - started

    def read(self, num_updates: int) -> float:
        """Updates per second since the last read. Resets."""
        now = time.perf_counter()
        rate = (num_updates - self.logged_at) / max(now - self._since - self._outside, 1e-9)
        self.logged_at, self._since, self._outside = num_updates, now, 0.0
        return rate
