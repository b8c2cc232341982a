"""Groups of runs by config keys: their results, the range that their means stay in, and the runs that are missing."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from hydrant.config import metric_keys
from hydrant.config.groups import REPETITIONS
from hydrant.extensions.compare.run import (
    REPEAT,
    FloatArray,
    Run,
    effective_repetitions,
    label,
    label_order,
    repetition,
    setting_of,
)
from hydrant.extensions.compare.statistics import UNBOUNDED, Bounds, Difference, Estimate, estimate
from hydrant.runs.folder import RunStatus

NOT_FINITE = "not finite"
"""The state of a run that finished without a finite value."""

_LARGEST = 1e150
"""Values of this size or more count as not finite, and those up to its inverse as 0."""


@dataclass(frozen=True)
class Metric:
    """The metric to compare, and whether more of it is better."""

    name: str
    mode: str  # "max" or "min"
    bounds: Bounds = UNBOUNDED  # of the intervals of its means

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.mode == "max" else value < other

    def rank(self, value: float | None) -> float:
        """Return a number that is smaller for a better value, and infinite for a missing one."""
        return math.inf if value is None else -value if self.mode == "max" else value

    def best(self, values: Sequence[float]) -> float | None:
        return min(values, key=self.rank, default=None)

    def final(self, run: Run) -> float | None:
        """Return the last value of a run; None if there is none or it is not finite.

        Statistics square values: a value whose square overflows counts as not finite, and a value whose square
        underflows as 0.
        """
        series = run.series.get(self.name)
        value = math.nan if series is None else float(series.values[-1])
        if not abs(value) < _LARGEST:
            return None
        return value if abs(value) > 1 / _LARGEST else 0.0

    @property
    def is_test(self) -> bool:
        """Whether the values are those of the best checkpoint, which is tested at the end."""
        return self.name.startswith(("test/", "test_ema/"))

    def measured_at(self, run: Run) -> int | None:
        """Return the number of updates of the weights that gave the last value: a test uses the best checkpoint."""
        series = run.series.get("test/num_updates" if self.is_test else self.name)
        if series is None or not math.isfinite(series.values[-1]):
            return None
        return int(series.values[-1] if self.is_test else series.updates[-1])

    def best_of(self, run: Run) -> float | None:
        """Return the best value of a run, without the untrained model (as in a study)."""
        if (series := run.series.get(self.name)) is None:
            return None
        return self.best(series.values[(np.abs(series.values) < _LARGEST) & (series.updates > 0)].tolist())

    def result(self, run: Run) -> float | None:
        """Return the last value of a run that has finished; None for others, or if it is not finite."""
        return self.final(run) if run.state == RunStatus.FINISHED else None

    def has_result(self, run: Run) -> bool:
        return self.result(run) is not None


@dataclass(frozen=True)
class Terms:
    """How results are judged."""

    metric: Metric
    repetitions: str  # what the runs of a group are: `seeds`, `folds`, or `seeds and folds`
    # Of how many settings each group is the best one by the same runs. Each counts as a comparison.
    num_tried: int = 1
    num_looks: int = 1  # at these results while they grew. The last one tests at 5 % / num_looks**2.
    is_study: bool = False  # which chooses the seeds, so none are advised

    @property
    def factor(self) -> int:
        """How often each comparison counts."""
        return self.num_tried * self.num_looks**2

    @property
    def has_folds(self) -> bool:
        """Whether results are those of folds, of which nobody can add one."""
        return "fold" in self.repetitions


@dataclass(frozen=True)
class Group:
    """Runs with the same values of the grouping keys."""

    labels: Mapping[str, str]
    runs: Sequence[Run]
    counted: Mapping[str, Sequence[Run]]  # those behind each result: the runs of one seed, by its label
    results: Mapping[str, float]  # the mean over these runs: one number for each seed
    estimate: Estimate  # over the independent numbers of these results
    states: Mapping[str, int]  # number of runs by state, or NOT_FINITE
    num_seeds: int = 1  # that its runs have, or folds
    averaged_over: Sequence[str] = ()  # the keys in which the runs of one seed differ
    cells: Sequence[str] = ()  # the settings of these keys that count
    left_out: Sequence[str] = ()  # settings and seeds with results that do not
    # Seeds (and folds) that most other groups have, as `seed 1 fold 2`.
    missing_repetitions: Sequence[str] = ()
    versus: Difference | None = None  # from the baseline

    @property
    def name(self) -> str:
        return name_of(self.labels)

    @property
    def num_runs(self) -> int:
        """The number of runs with the missing ones, without repeats."""
        return sum(num for state, num in self.states.items() if state != REPEAT)

    @property
    def without_result(self) -> Mapping[str, int]:
        """The number of runs without a result, by state. Pruned runs do not count: a study prunes by their results."""
        with_result = (RunStatus.FINISHED, RunStatus.PRUNED, REPEAT)
        return {state: num for state, num in self.states.items() if state not in with_result}

    @property
    def shortfall(self) -> str:
        """The reason why the group is incomplete, in words; "" if it is complete."""
        return self.shortfall_of(f"its {self.num_runs} runs")

    def shortfall_of(self, runs: str) -> str:
        """Return why the group is incomplete. `runs`: its runs, in words."""
        if not self.without_result:
            return ""
        num = sum(self.without_result.values())
        return f"{num} of {runs} {'has' if num == 1 else 'have'} no result ({self.lacking})"

    @property
    def lacking(self) -> str:
        """The number of runs without a result in words: `2 failed, 1 missing`."""
        return ", ".join(f"{num} {state}" for state, num in self.without_result.items())


def are_balanced(groups: Sequence[Group]) -> bool:
    """Return whether the results of all groups are means over the same settings of the other keys."""
    return len({tuple(group.cells) for group in groups if group.results}) < 2


def name_of(labels: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in labels.items()) or "all runs"


def group_runs(runs: Sequence[Run], by: Sequence[str], keys: Sequence[str], metric: Metric) -> list[Group]:
    """Return the groups, sorted by their labels from the first key to the last.

    The unit of evidence is the seed, with what is drawn anew beside it, such as the fold: each gives one result. Where
    its runs differ in other keys, they may be near-copies of each other, so their mean over these keys counts.
    """
    other_keys = [key for key in keys if key not in by]
    orders = [label_order([run.config.get(key) for run in runs]) for key in by]
    members: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        members.setdefault(tuple(label(run, key) for key in by), []).append(run)
    ordered = sorted(members, key=lambda labels: [o[text] for o, text in zip(orders, labels, strict=True)])
    seed_keys = [key for key in other_keys if key in REPETITIONS]
    # A key with one value in each group, such as a learning rate chosen for each optimizer, belongs to the groups.
    varied = [
        key
        for key in other_keys
        if key not in REPETITIONS and any(len({label(run, key) for run in of}) > 1 for of in members.values())
    ]
    tables = [_table(members[labels], varied, seed_keys, metric) for labels in ordered]
    groups = [
        _group(dict(zip(by, labels, strict=True)), members[labels], seed_keys, varied, table, cells, metric)
        for labels, table, cells in zip(ordered, tables, _counted_cells(tables), strict=True)
    ]
    return _with_missing_repetitions(groups, seed_keys) if seed_keys else groups


_Table = Mapping[str, Mapping[str, Run]]
"""The runs of a group with a result, by their cell, a setting of the other keys, and by the label of their seed."""


def _table(runs: Sequence[Run], varied: Sequence[str], seed_keys: Sequence[str], metric: Metric) -> _Table:
    table: dict[str, dict[str, Run]] = {}
    for run in runs:
        if metric.has_result(run):
            table.setdefault(setting_of(run, varied), {})[seed_of(run, seed_keys)] = run
    return table


def seed_of(run: Run, seed_keys: Sequence[str]) -> str:
    """Return a word for each key that is drawn on its own: a fold belongs to its division."""
    words = {key: label(run, key) for key in seed_keys}
    if "fold" in words and "fold_seed" in words:
        words["fold"] += f".{words.pop('fold_seed')}"
    return " ".join(words.values())


def _counted_cells(tables: Sequence[_Table]) -> list[Sequence[str]]:
    """Return the cells of each group that count: a balanced part, so that groups differ in nothing but their keys.

    These are the cells that all groups have, of the seeds that have all of them: a failed run takes its seed away, not
    its cell. If fewer than two seeds of a group are left, those cells that all seeds of all groups have, else of one
    seed. Groups without a common cell, such as optimizers with learning rates of their own, have the cells of their own
    that all of their seeds have.
    """
    all_seeds = [set[str]().union(*table.values()) for table in tables]
    whole = [
        [cell for cell, runs in table.items() if set(runs) == seeds]
        for table, seeds in zip(tables, all_seeds, strict=True)
    ]
    compared = [n for n, table in enumerate(tables) if table]
    for cells, num_seeds in ((tables, 2), (whole, 1), (tables, 1)):
        shared = [cell for n in compared[:1] for cell in cells[n] if all(cell in cells[m] for m in compared)]
        if all(len(_seeds_with(tables[n], shared)) >= num_seeds for n in compared):
            return [shared if table else [] for table in tables]
    return [cells or [*table] for cells, table in zip(whole, tables, strict=True)]


def _seeds_with(table: _Table, cells: Sequence[str]) -> list[str]:
    """Return the seeds that have all of these cells."""
    return [seed for seed in table[cells[0]] if all(seed in table[cell] for cell in cells)] if cells else []


def _with_missing_repetitions(groups: Sequence[Group], seed_keys: Sequence[str]) -> list[Group]:
    """Return the groups with the seeds that they have and lack; in cross-validations with the seeds and folds.

    A seed is missing if more than half of the groups have it, or half of them and one of these has all seeds of the
    group too. So with seeds 0, 1, 2 of one group and 0 of another, two are missing; with different seeds none is.
    Only groups that are repeated alike are compared: one without wrong labels lacks none of their seeds.
    """
    kinds = [tuple(effective_repetitions(group.runs[0])) for group in groups]
    missing = {
        kind: iter(_missing_repetitions([g for g, of in zip(groups, kinds, strict=True) if of == kind]))
        for kind in dict.fromkeys(kinds)
    }
    labels = {repetition(run): seed_of(run, seed_keys) for group in groups for run in group.runs}
    completed = list[Group]()
    for group, kind in zip(groups, kinds, strict=True):
        lacking, states = next(missing[kind]), Counter(group.states)
        seeds = {seed_of(run, seed_keys) for run in group.runs if run.state != REPEAT}
        num = len(independent(dict.fromkeys(sorted(seeds.union(labels[name] for name in lacking)), 0.0)))
        states += Counter(missing=len(lacking))
        completed.append(replace(group, missing_repetitions=lacking, states=states, num_seeds=num))
    return completed


def _missing_repetitions(groups: Sequence[Group]) -> list[list[str]]:
    seeds = [{repetition(run) for run in group.runs} for group in groups]
    num_groups = Counter(seed for group_seeds in seeds for seed in group_seeds)
    common = [seed for seed, num in num_groups.items() if 2 * num >= len(groups)]
    common.sort(key=lambda seed: (len(seed), seed))

    def is_missing(seed: str, group_seeds: set[str]) -> bool:
        is_subset = any(group_seeds < other for other in seeds if seed in other)
        return seed not in group_seeds and (is_subset or 2 * num_groups[seed] > len(groups))

    return [[seed for seed in common if is_missing(seed, group_seeds)] for group_seeds in seeds]


def _group(
    labels: Mapping[str, str],
    runs: Sequence[Run],
    seed_keys: Sequence[str],
    varied: Sequence[str],
    table: _Table,
    cells: Sequence[str],
    metric: Metric,
) -> Group:
    every_seed = dict.fromkeys(seed for of in table.values() for seed in of)
    seeds = balanced(_seeds_with(table, cells) or [*every_seed])
    counted = {seed: [table[cell][seed] for cell in cells if seed in table[cell]] for seed in seeds}
    results = {
        seed: float(np.mean([value for run in of_seed if (value := metric.result(run)) is not None]))
        for seed, of_seed in counted.items()
    }
    states = Counter(
        NOT_FINITE if run.state == RunStatus.FINISHED and not metric.has_result(run) else str(run.state)
        for run in runs
    )
    lacking = dict.fromkeys(seed for cell in cells for seed in table[cell] if seed not in counted)
    left_out = [cell for cell in table if cell not in cells]
    left_out += [f"{' '.join(seed_keys)} {seed}" for seed in lacking]
    of_all = estimate(independent(results), metric.bounds)
    return Group(labels, runs, counted, results, of_all, states, 1, varied, cells, left_out)


def independent(results: Mapping[str, float]) -> list[float]:
    """Return the results as a sample of independent numbers, for a t-test.

    Without crossed keys these are the results. Keys are crossed if their values are combined, such as two seeds with
    the same two folds: then results with a common value depend on each other. So the results that `balanced` keeps are
    combined, by `unit_weights`, into as many numbers as the key with the fewest values has. Their mean stays the same.

    Args:
        results: by their labels, with a word for each key that repeats a run.

    >>> independent({"0 0": 1.0, "0 1": 2.0, "1 0": 3.0, "1 1": 4.0})  # two seeds, each with the same two folds
    [1.0, 4.0]
    """
    weights, values = unit_weights(tuple(results)), [*results.values()]
    return values if weights is None else (weights @ values).tolist()


@cache
def unit_weights(labels: tuple[str, ...]) -> FloatArray | None:
    """Return the matrix that turns results into independent numbers, (numbers, results); None if all are independent.

    The values of each key are divided into as many parts as there are numbers. Number i is the mean of all results. For
    each key, the mean of the results of its i-th part is added, and that over all parts subtracted.

    With S seeds and L folds, let the variance of a result be `s + f + r`: of its seed, its fold and the run itself. The
    mean of all results has the variance `s / S + f / L + r / (S * L)`. The variance of the numbers over their count
    estimates `r / (S * L)` more than that. So a t-test of them errs at most as often as it says.
    """
    kept = balanced(labels)
    axes = _axes(kept)
    num = min((max(axis) + 1 for axis in axes), default=len(kept))
    if num == len(labels):
        return None
    weights = np.full((num, len(kept)), 1 / len(kept))
    for axis in axes:
        part = (np.array(axis) * num // (max(axis) + 1) == np.arange(num)[:, None]).astype(float)
        part /= part.sum(axis=1, keepdims=True)
        weights += part - part.mean(axis=0)
    of_all = np.zeros((num, len(labels)))
    of_all[:, [labels.index(label) for label in kept]] = weights
    return of_all


def balanced(labels: Sequence[str]) -> list[str]:
    """Return the labels that are left when each value of a crossed key is equally frequent: the rarest are removed.

    >>> balanced(["0 0", "0 1", "0 2", "1 0"])  # three folds of seed 0, and one of another seed
    ['0 0', '0 1', '0 2']
    """
    kept = [*labels]
    while len(axes := _axes(kept)) > 1:
        counts = [Counter(axis) for axis in axes]
        uneven = [n for n, of in enumerate(counts) if len({*of.values()}) > 1]
        if not uneven:
            break
        _, n, rarest = min((num, n, level) for n in uneven for level, num in counts[n].items())
        kept = [label for label, level in zip(kept, axes[n], strict=True) if level != rarest]
    return kept


def _axes(labels: Sequence[str]) -> list[list[int]]:
    """Return the keys with several values that determine no other key, each as the number of its value in each label.

    Such as the seed, if each seed has folds of its own: the fold determines the seed.
    """
    words = zip(*map(str.split, labels), strict=True)
    columns = [[*map([*dict.fromkeys(column)].index, column)] for column in words]
    axes: list[list[int]] = []
    # Only a key with as many values, or more, determines another.
    for key in sorted(filter(any, columns), key=max):
        if all(len({*zip(key, other, strict=True)}) > max(key) + 1 for other in axes):
            axes.append(key)
    return axes


def bounds_of(metric: str, runs: Sequence[Run]) -> Bounds:
    """Return the bounds of a metric, by all of its values."""
    values = [run.series[metric].values for run in runs if metric in run.series]
    finite = [column[np.isfinite(column)] for column in values]
    ends = [float(end) for column in finite if len(column) for end in (column.min(), column.max())]
    return metric_keys.bounds_of(metric, [run.config for run in runs], ends)
