"""Runs grouped by config keys: what each group reached, what is missing, and how it stands beside a baseline."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hydrant.compare.keys import as_text, label, means, spread
from hydrant.compare.sources import REPEAT, Run
from hydrant.compare.statistics import Difference, Estimate, estimate, holm, paired
from hydrant.errors import ConfigError, unknown_name
from hydrant.runs import choices_in


@dataclass(frozen=True)
class Goal:
    """The metric that is compared, and whether more of it is better."""

    metric: str
    mode: str  # "max" or "min"

    def better(self, one: float, other: float) -> bool:
        return one > other if self.mode == "max" else one < other

    def best(self, values: Sequence[float]) -> float | None:
        return (max if self.mode == "max" else min)(values, default=None)

    def final(self, run: Run) -> float | None:
        """The last value of a run; None where it has none, or no finite one."""
        series = run.series.get(self.metric)
        return float(series.values[-1]) if series is not None and math.isfinite(series.values[-1]) else None

    def best_of(self, run: Run) -> float | None:
        """The best value that a run ever had; the untrained model does not count, nor does it in a study."""
        if (series := run.series.get(self.metric)) is None:
            return None
        return self.best(series.values[np.isfinite(series.values) & (series.updates > 0)].tolist())

    def counts(self, run: Run) -> bool:
        """Whether a run has a result: it is finished, with a finite value."""
        return run.state == "finished" and self.final(run) is not None


@dataclass(frozen=True)
class Group:
    """Runs that have the same under every key they are grouped by."""

    labels: Mapping[str, str]
    runs: Sequence[Run]
    results: Mapping[str, float]  # by what is not grouped, such as the seed: of the runs that have a result
    estimate: Estimate
    best: float | None
    states: Mapping[str, int]  # how many runs ended how; "not finite" are finished without a finite value
    absent: Sequence[str] = ()  # seeds that most of the other groups have; they count as missing
    versus: Difference | None = None

    @property
    def name(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.labels.items()) or "all runs"

    @property
    def num_runs(self) -> int:
        """With those that are missing, without repeats."""
        return sum(num for state, num in self.states.items() if state != REPEAT)

    @property
    def lost(self) -> Mapping[str, int]:
        """How many of its runs have no result, or none yet, by how they ended; a study ends a run because of one."""
        return {
            state: num for state, num in self.states.items() if state not in ("finished", "pruned", REPEAT)
        }

    @property
    def shortfall(self) -> str:
        """What it lacks to be whole, in words; "" for nothing."""
        told = ", ".join(f"{num} {state}" for state, num in self.lost.items())
        return (
            f"{sum(self.lost.values())} of its {self.num_runs} runs have no result ({told})" if told else ""
        )


def group_runs(runs: Sequence[Run], by: Sequence[str], keys: Sequence[str], goal: Goal) -> list[Group]:
    """The groups in the order of their labels, of keys from the left."""
    rest = [key for key in keys if key not in by]
    orders = [_places([run.config.get(key) for run in runs]) for key in by]
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(label(run, key) for key in by), []).append(run)
    ordered = sorted(
        found, key=lambda labels: [order[text] for order, text in zip(orders, labels, strict=True)]
    )
    groups = [_group(dict(zip(by, labels, strict=True)), found[labels], rest, goal) for labels in ordered]
    return _with_absent(groups) if "seed" in rest else groups


def _with_absent(groups: Sequence[Group]) -> list[Group]:
    """The groups with what they lack of the seeds that more than half of them have.

    Or half of them, if one of these has all the others' seeds: with three seeds of one group and the first of another,
    two are missing, while with different ones none is.
    """
    seeds = [{label(run, "seed") for run in group.runs} for group in groups]
    num_groups = Counter(seed for own in seeds for seed in own)
    usual = sorted(
        (seed for seed, num in num_groups.items() if 2 * num >= len(groups)), key=lambda s: (len(s), s)
    )

    def lacks(own: set[str], seed: str) -> bool:
        is_beyond = any(own < other for other in seeds if seed in other)
        return seed not in own and (is_beyond or 2 * num_groups[seed] > len(groups))

    lacking = [[seed for seed in usual if lacks(own, seed)] for own in seeds]
    return [
        replace(g, absent=own, states=Counter(g.states) + Counter(missing=len(own)))
        for g, own in zip(groups, lacking, strict=True)
    ]


def _places(values: Sequence[object]) -> dict[str, int]:
    """The place of each label of a key."""
    return {text: place for place, text in enumerate(["-", *map(as_text, spread(values))])}


def _group(labels: Mapping[str, str], runs: Sequence[Run], rest: Sequence[str], goal: Goal) -> Group:
    finals = {" ".join(label(run, key) for key in rest): goal.final(run) for run in runs if goal.counts(run)}
    results = {block: final for block, final in finals.items() if final is not None}
    values = list(results.values())
    states = Counter(
        "not finite" if run.state == "finished" and not goal.counts(run) else run.state for run in runs
    )
    return Group(labels, runs, results, estimate(values), goal.best(values), states)


def winner(groups: Sequence[Group], goal: Goal) -> Group | None:
    """The group with the best mean; one that is not whole only where no other is.

    The mean of the runs that survived says nothing of those that did not.
    """
    with_mean = [group for group in groups if group.estimate.mean is not None]
    whole = [group for group in with_mean if not group.lost] or with_mean
    mean = goal.best([_mean(group) for group in whole])
    return next((group for group in whole if group.estimate.mean == mean), None)


def passed_over(groups: Sequence[Group], best: Group, goal: Goal) -> list[Group]:
    """The groups whose mean is better than the winner's, but which are not whole."""
    others = [group for group in groups if group.lost and group.estimate.mean is not None]
    return [group for group in others if goal.better(_mean(group), _mean(best))]


def beside(groups: Sequence[Group], baseline: Group) -> list[Group]:
    """The groups with their paired differences from the baseline."""
    found = [None if group is baseline else difference(group, baseline) for group in groups]
    tested = [d.p for d in found if d is not None and d.p is not None]
    corrected = iter(holm(tested))
    return [
        replace(g, versus=d if d is None or d.p is None else replace(d, p_holm=next(corrected)))
        for g, d in zip(groups, found, strict=True)
    ]


def difference(group: Group, other: Group) -> Difference:
    """Of the results that the two have for the same seed, and whatever else is not grouped."""
    shared = [block for block in group.results if block in other.results]
    return paired([group.results[b] for b in shared], [other.results[b] for b in shared])


def _mean(group: Group) -> float:
    assert group.estimate.mean is not None
    return group.estimate.mean


def find_baseline(groups: Sequence[Group], text: str) -> Group:
    """The one group that `optimizer=sgd,scheduler=cosine` names; what is left out may be anything.

    Raises:
        ConfigError: it names none, or several.
    """
    wanted = choices_in(re.split(r",(?=[\w@./]+=)", text))
    by = groups[0].labels
    for key in wanted:
        if key not in by:
            raise unknown_name("--baseline", "key", key, by)
    found = [g for g in groups if all(means(text, g.labels[key]) for key, text in wanted.items())]
    if len(found) != 1:
        names = ", ".join(group.name.replace(" ", ",") for group in (found or groups)[:10])
        what = "is no group" if not found else f"are {len(found)} groups"
        raise ConfigError("--baseline", f"{text!r} {what}; give one of: {names}")
    return found[0]


def missing_cells(groups: Sequence[Group]) -> tuple[int, list[dict[str, str]]]:
    """How many combinations of the groups' labels there are, and those without any run, where half of them have one.

    Where fewer have one, or the runs are trials of a study, they make no grid.
    """
    axes = {key: list(dict.fromkeys(group.labels[key] for group in groups)) for key in groups[0].labels}
    present = {tuple(group.labels.values()) for group in groups if set(group.states) != {"missing"}}
    num_cells = math.prod(map(len, axes.values()))
    is_search = any("trial" in run.summary for group in groups for run in group.runs)
    if is_search or 2 * len(present) < num_cells:
        return num_cells, []
    cells = itertools.product(*axes.values())
    return num_cells, [dict(zip(axes, cell, strict=True)) for cell in cells if cell not in present]
