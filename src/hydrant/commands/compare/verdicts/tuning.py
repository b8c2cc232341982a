"""Tuning under equal budgets: the expected best of n trials of each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hydrant.checks import unknown_name
from hydrant.commands.compare.config_keys import label
from hydrant.commands.compare.evidence.best_of_n import BestOfN, best_of_n
from hydrant.commands.compare.groups import Group, Metric
from hydrant.commands.compare.verdicts.cells import Cells, result
from hydrant.terminal.numbers import number

_TUNED = ("optimizer.", "optimizers.", "scheduler.", "schedules.")
"""Keys below these are settings of a method; all others, such as `optimizer` or `model`, make another method."""

MIN_TRIALS = 3


@dataclass(frozen=True)
class Method:
    """The results of one method with its trials."""

    name: str
    num_trials: int
    # Trials of which a run failed or diverged. Each counts as the worst finished trial of all methods.
    num_failed: int
    curve: BestOfN  # over 1 to the common budget


@dataclass(frozen=True)
class Tuning:
    """The methods, tuned with the same number of trials."""

    tuned: Sequence[str]
    budget: int  # trials: the fewest of any method
    methods: Sequence[Method]
    sentences: Sequence[str]


def tuned_keys(cells: Cells, given: Sequence[str] | None) -> list[str]:
    """Return the keys whose values are trials: the given ones, or the settings of optimizers and schedules.

    Raises:
        ConfigError: the runs do not differ in one of the given keys.
    """
    if given is None:
        return [key for key in cells.keys if key.startswith(_TUNED)]
    for key in given:
        if key not in cells.keys:
            raise unknown_name("--tuned", "key", key, cells.keys)
    return list(given)


def find_tuning(cells: Cells, metric: Metric, tuned: Sequence[str] | None) -> Tuning | None:
    """Return the curves; None unless all methods have at least three trials. Raises as `tuned_keys` does."""
    keys = tuned_keys(cells, tuned)
    lines = cells.lines(keys)
    budget = min(map(len, lines.values()), default=0)
    finite = [mean for group in cells.groups if (mean := result(group)) is not None]
    if not keys or budget < MIN_TRIALS or not finite:
        return None
    worst = max(finite, key=metric.rank)
    methods = [_method(name, groups, metric.mode, budget, worst) for name, groups in lines.items()]
    found = Tuning(keys, budget, methods, [])
    return replace(found, sentences=_sentences(found, cells, metric))


def _method(name: str, groups: Sequence[Group], mode: str, budget: int, worst: float) -> Method:
    results = [result(group) for group in groups]
    values = [worst if value is None else value for value in results]
    return Method(name, len(groups), results.count(None), best_of_n(values, mode, budget))


def _sentences(found: Tuning, cells: Cells, metric: Metric) -> list[str]:
    keys = ", ".join(found.tuned)
    sentences = [f"A trial is one setting of {keys}; its result is the mean over its seeds."]
    numbers = {method.name: method.num_trials for method in found.methods}
    if len(set(numbers.values())) > 1:
        most = max(numbers, key=numbers.__getitem__)
        sentences.append(
            f"The methods have {found.budget} to {numbers[most]} trials; all curves end at {found.budget}, "
            "so that no method is tuned more than another."
        )
    if failed := sum(method.num_failed for method in found.methods):
        sentences.append(f"{failed} trials failed or diverged; they count as the worst finished trial.")
    if len(found.methods) > 1:
        sentences.append(_leaders(found, metric))
    sentences.append(
        "The curves assume trials that are drawn at random from the tried settings, with replacement (Dodge et al., "
        "2019). They underestimate near the whole budget, and another search range gives other curves. The best of n "
        "is picked by these results, so new seeds will be a little worse."
    )
    ranges = {_ranges(groups, found.tuned) for groups in cells.lines(found.tuned).values()}
    if len(ranges) > 1:
        sentences.append(
            "The methods were tried on different values, so the choice of the ranges is part of the comparison."
        )
    return sentences


def _leaders(found: Tuning, metric: Metric) -> str:
    """Return which method has the best expected result with how many trials."""
    leaders = [
        min(found.methods, key=lambda method, n=n: metric.rank(method.curve.expected[n]))
        for n in range(found.budget)
    ]
    spans: list[tuple[int, Method]] = []
    for n, leader in enumerate(leaders, 1):
        if not spans or spans[-1][1] is not leader:
            spans.append((n, leader))
    texts = [
        f"{leader.name} from {n} trial{'s' * (n != 1)} on ({number(leader.curve.expected[-1])} with {found.budget})"
        for n, leader in spans
    ]
    overlap = _overlaps(found, leaders[-1])
    doubt = f" With {found.budget}, the intervals of {overlap} overlap that of the best." if overlap else ""
    return f"Best expected {metric.name}: {', '.join(texts)}.{doubt}"


def _overlaps(found: Tuning, leader: Method) -> str:
    """Return how many other methods have an interval that overlaps the leader's, in words; "" if none has."""
    num = 0
    for other in found.methods:
        if other is leader or other.curve.low is None or other.curve.high is None:
            continue
        assert leader.curve.low is not None and leader.curve.high is not None
        num += other.curve.low[-1] <= leader.curve.high[-1] and leader.curve.low[-1] <= other.curve.high[-1]
    return "" if num == 0 else f"{num} of {len(found.methods) - 1} others"


def _ranges(groups: Sequence[Group], tuned: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(sorted({tuple(label(group.runs[0], key) for key in tuned) for group in groups}))
