"""Means that accumulate on the device and are read with one synchronisation, and the pace of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Meter:
    """Weighted means of named scalars since the last read.

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
        self._weight = 0
        self._read = self._sums  # of this rank alone, at the last read

    def add(self, values: Mapping[str, Tensor], weight: int) -> None:
        """Add scalars (shape ()) that stand for `weight` samples; the names are the same until the next read.

        Of no samples the names alone count: a mean over none is no number.
        """
        if self._names != list(values):
            self._names = list(values)
            self._sums = torch.zeros(len(values), dtype=torch.float64, device=self._device)
        if weight:
            self._sums.add_(torch.stack([value.detach() for value in values.values()]), alpha=weight)
            self._weight += weight

    def read(self, also: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """The means over all ranks, and the scalars in `also` as they are; the one synchronisation. Resets."""
        if not self._names:  # nor has any other rank
            return {}
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
        """What was added since the last read, so that a resumed run logs what an unbroken one does."""
        return {"names": list(self._names), "sums": self._sums.clone(), "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._names, self._weight = list(state["names"]), state["weight"]
        self._sums = state["sums"].to(self._device)

    def first_non_finite(self) -> str | None:
        """The first name whose sum on this rank, since the last read or at it, is NaN or infinite; synchronises."""
        sums = (self._sums if self._weight else self._read).tolist()
        return next((n for n, s in zip(self._names, sums, strict=False) if not math.isfinite(s)), None)


def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The states of several meters as one that has been given all of it."""
    used = [state for state in states if state["weight"]]
    if not used:
        return states[0]
    sums = torch.stack([state["sums"] for state in used]).sum(0)
    return {"names": used[0]["names"], "sums": sums, "weight": sum(state["weight"] for state in used)}


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
