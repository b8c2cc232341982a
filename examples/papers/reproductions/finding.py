"""What a reproduction finds: a number of each seed, beside what the paper claims about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.figures import rounded
from hydrant.extensions.compare.statistics import CONFIDENCE, Estimate, estimate
from hydrant.extensions.study import verdict as study_verdict

Row = Mapping[str, Any]
"""A run: its config keys, the last value of each kept metric, and its curves as [[update, value], ...]."""


@dataclass(frozen=True)
class Finding:
    """A number that a paper makes a claim about.

    Args:
        what: is measured.
        values: of each seed.
        low: the least value that agrees with the claim; -inf: any small one.
        high: the greatest value that agrees with the claim; inf: any large one.
        over: what each value is of.
        paper: makes this claim, if it is not that of the reproduction.
        has_looks: their number depends on them, as in a study. The interval holds after each of them.
        is_test: of the claim. What is none has no verdict.
    """

    what: str
    values: Sequence[float]
    low: float
    high: float
    over: str = "seeds"
    paper: str = ""
    has_looks: bool = False
    is_test: bool = True

    @property
    def estimate(self) -> Estimate:
        found = estimate(self.values)
        if not self.has_looks:
            return found
        looked = study_verdict.estimate(self.values, 1 - CONFIDENCE)
        return replace(found, low=looked.low, high=looked.high)

    @property
    def agrees(self) -> bool:
        """Whether the mean is in the range of the claim."""
        return self.low <= (self.estimate.mean or 0.0) <= self.high

    @property
    def verdict(self) -> str:
        """Whether the whole interval of the mean is in the range of the claim, outside of it, or neither.

        >>> [Finding("loss", [1.0, 1.1, 0.9], low, 2.0).verdict for low in (0.0, 1.0, 1.5)]
        ['yes', 'undecided', 'no']
        >>> Finding("loss", [1.0, 1.0], 0.5, 2.0).verdict  # equal values have no interval
        'yes'
        >>> Finding("loss", [1.0, 1.1, 0.9], 0.0, 2.0, has_looks=True).verdict  # a study of three seeds bounds nothing
        'undecided'
        >>> Finding("loss", [1.0, 1.0], 0.5, 2.0, is_test=False).verdict
        'not tested'
        """
        if not self.is_test:
            return "not tested"
        found = self.estimate
        low, high = (found.mean if end is None else end for end in (found.low, found.high))
        assert low is not None
        assert high is not None
        if found.num < 2 or (self.has_looks and found.low is None):
            return "undecided"
        if self.low <= low and high <= self.high:
            return "yes"
        return "no" if high < self.low or low > self.high else "undecided"

    @property
    def claim(self) -> str:
        """The range in words.

        >>> [Finding("loss", [1.0], *ends).claim for ends in ((0.0, 0.5), (-math.inf, 0.0), (0.0, math.inf))]
        ['0 to 0.5', 'below 0', 'above 0']
        """
        if math.isinf(self.low):
            return f"below {rounded(self.high)}"
        return (
            f"above {rounded(self.low)}"
            if math.isinf(self.high)
            else f"{rounded(self.low)} to {rounded(self.high)}"
        )

    @property
    def interval(self) -> str:
        """The 95 % interval of the mean, such as `0.63 to 0.66`; empty if the values are equal.

        It is not cut at the least and greatest possible value, because that changes verdicts.

        >>> Finding("accuracy", [0.9, 1.0, 1.0], 0.9, 1.0).interval
        '0.823 to 1.11'
        """
        found = self.estimate
        return (
            ""
            if found.low is None or found.high is None
            else f"{rounded(found.low)} to {rounded(found.high)}"
        )


@dataclass(frozen=True)
class Lines:
    """A panel with a line through the means over the seeds, and a dot for each run, for each label."""

    title: str
    x: str
    y: str
    points: Mapping[str, Mapping[Any, Sequence[float]]]  # by label, by x
    log: str = ""  # "x", "y" or "xy": these axes are logarithmic
    levels: Mapping[str, float] | None = None  # horizontal lines, by label


@dataclass(frozen=True)
class Heat:
    """A panel with a field for each pair of values, and a dot at the lowest one of each row."""

    title: str
    x: str
    y: str
    values: Mapping[tuple[float, float], float]  # by (y, x)


Panel = Lines | Heat


def groups(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Return the rows by the value of a key, or the values of several, both in ascending order, by seed within."""
    found: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (*(row[key] for key in keys), row["seed"])):
        value = row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)
        found.setdefault(value, []).append(row)
    return found


def of_each_seed(rows: Iterable[Row], measure: Callable[[Sequence[Row]], float]) -> list[float]:
    """Return a number that is computed from the runs of one seed, for each seed."""
    return [measure(found) for found in groups(rows, "seed").values()]
