"""Groups beside each other: the winner, the baseline, the differences, and the best values of keys (`--best-over`)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hydrant.config.schema import REPETITIONS
from hydrant.errors import ConfigError, check_known, quoted
from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.config_keys import equals_label, label, repetition
from hydrant.extensions.compare.groups import Group, Metric, bounds_of, group_runs, independent, seed_of
from hydrant.extensions.compare.run import REPEAT, SEVERAL, Run
from hydrant.runs.folder import choices_in


def find_winner(groups: Sequence[Group], metric: Metric) -> Group | None:
    """Return the complete group with the best mean; an incomplete one only if no group is complete.

    Incomplete groups come last, because their means leave out the runs that failed.
    """
    with_mean = [group for group in groups if group.estimate.mean is not None]
    candidates = [group for group in with_mean if not group.without_result] or with_mean
    return next(iter(best_first(candidates, metric)), None)


def best_first(groups: Sequence[Group], metric: Metric) -> list[Group]:
    """Return the groups by their means; those without a result come last."""
    return sorted(groups, key=lambda group: metric.rank(group.estimate.mean))


def passed_over(groups: Sequence[Group], winner: Group | None, metric: Metric) -> list[Group]:
    """Return the incomplete groups with a better mean than the winner."""
    limit = -math.inf if winner is None else metric.rank(winner.estimate.mean)
    return [group for group in groups if group.without_result and metric.rank(group.estimate.mean) < limit]


def with_differences(
    groups: Sequence[Group], baseline: Group, num_tried: int = 1, beside: Sequence[float] = ()
) -> list[Group]:
    """Return the groups with their differences from the baseline.

    Args:
        num_tried: of how many settings each group is the best one by the same runs. Each counts as a comparison.
        beside: the p-values of other tests for which these are corrected too.
    """
    differences = [None if group is baseline else difference(group, baseline) for group in groups]
    tested = [d.p for d in differences if d is not None and d.p is not None]
    corrected = (min(1.0, num_tried * p) for p in statistics.holm([*tested, *beside]))
    return [
        replace(g, versus=d if d is None or d.p is None else replace(d, p_holm=next(corrected)))
        for g, d in zip(groups, differences, strict=True)
    ]


def difference(group: Group, other: Group) -> statistics.Difference:
    """Return the difference of two groups: of the results with the same labels, such as of the seed.

    Without at least two such pairs, or with pairs for less than half of the smaller group, it is that of all results.
    """
    shared, overlap = [labels for labels in group.results if labels in other.results], overlap_of(group)
    smaller = min(len(group.results), len(other.results))
    if len(shared) < min(2, smaller) or 2 * len(shared) < smaller:
        return statistics.unpaired(independent(group.results), independent(other.results), overlap)
    values, baseline = (independent({name: g.results[name] for name in shared}) for g in (group, other))
    return statistics.paired(values, baseline, overlap)


def overlap_of(group: Group) -> float:
    """Return how many validation samples a split has for each training sample; 0 if all runs have the same split.

    Where several splits make one independent number, it scatters by as much less as they are, but the overlap does not.
    """
    runs = group.runs
    config = runs[0].config if runs else {}
    keys = [key for key in REPETITIONS if len({label(run, key) for run in runs}) > 1]
    folds = config.get("folds") if {"fold", "fold_seed"} & {*keys} else None
    ratio = config.get("data.val_ratio") if "data.split_seed" in keys else None
    if isinstance(folds, int) and folds > 1:
        ratio, keys = 1 / folds, ["fold_seed", "fold"]
    elif isinstance(ratio, float) and 0 < ratio < 1:
        keys = ["data.split_seed"]
    else:
        return 0.0
    num_splits = len({tuple(label(run, key) for key in keys) for run, *_ in group.counted.values()})
    return ratio / (1 - ratio) * num_splits / max(group.estimate.num, 1)


def find_baseline(groups: Sequence[Group], text: str) -> Group:
    """Return the only group that matches a text such as `optimizer=sgd,scheduler=cosine`.

    Raises:
        ConfigError: no group matches, or several do.
    """
    conditions = choices_in(re.split(r",(?=[\w@./]+=)", text))
    keys = groups[0].labels if groups else {}
    for key in conditions:
        check_known("--baseline", "key", key, keys)
    matches = [g for g in groups if all(equals_label(v, g.labels[k]) for k, v in conditions.items())]
    if len(matches) != 1:
        names = ", ".join(quoted(group.name.replace(" ", ",")) for group in (matches or groups)[:10])
        problem = "matches no group" if not matches else f"matches {len(matches)} groups"
        raise ConfigError("--baseline", f"{text!r} {problem}", remedy=f"give one of: {names}")
    return matches[0]


FRESH, TEST, SAME = "fresh seeds", "test", "same results"
"""What the chosen settings are judged on."""

_TESTS = {"val": "test", "val_ema": "test_ema"}
"""The test that has the metrics of a validation."""


@dataclass(frozen=True)
class Choice:
    """The runs of the chosen settings. Without `--best-over`, all runs."""

    runs: Sequence[Run]
    metric: Metric  # which judges
    values: Mapping[str, Mapping[str, str]]  # the chosen values, by group and key
    judged_on: str | None = None
    num_tried: int = 1  # the most settings of a group, whose best one was chosen by the runs that judge it
    sentence: str = ""


@dataclass(frozen=True)
class _Chosen:
    """The best setting of a group."""

    group: Group
    setting: Group
    choosing: Sequence[Run]  # by which it was chosen, of all settings
    num_settings: int

    @property
    def runs(self) -> list[Run]:
        values = self.setting.labels.items()
        return [run for run in self.group.runs if all(label(run, key) == value for key, value in values)]

    @property
    def fresh(self) -> list[Run]:
        """The runs of the setting that share no seed or fold with those that chose it; all, if there was no choice."""
        keys = [key for key in REPETITIONS if len({label(run, key) for run in self.group.runs}) > 1]
        chose = {word for run in self.choosing for word in enumerate(seed_of(run, keys).split())}
        words = [enumerate(seed_of(run, keys).split()) for run in self.runs]
        are_fresh = [not any(word in chose and word[1] != "-" for word in of_run) for of_run in words]
        return [
            run for run, fresh in zip(self.runs, are_fresh, strict=True) if fresh or self.num_settings == 1
        ]


def choose_best(
    runs: Sequence[Run],
    by: Sequence[str],
    over: Sequence[str],
    keys: Sequence[str],
    metric: Metric,
    validation: Metric,
) -> Choice:
    """Return the runs with the best values of the keys `over` in each group, and how they are judged.

    The seeds that all settings of a group have choose. Other seeds of the best one judge it, if each group has them;
    else its test; else the same results. A test of the same runs is optimistic too, because a run that is lucky in
    validation often is in the test. All runs of a group without a result stay.

    Raises:
        ConfigError: a key forms the groups, or there is no metric of validation to choose by.
    """
    if not over:
        return Choice(runs, metric, {})
    if validation.is_test:
        raise ConfigError("--best-over", "needs a metric of validation, because a test must not choose")
    counted = [run for run in runs if run.state not in (SEVERAL, REPEAT)]
    groups = group_runs(counted, by, keys, validation)
    best_of_each = [_choose(group, over, keys, validation) for group in groups]
    chosen = [best for best in best_of_each if best is not None]
    without = [group for group, best in zip(groups, best_of_each, strict=True) if best is None]
    judged_on, judged, judge = _judge(chosen, metric)
    judged += _not_chosen(without, judge, validation)
    values = {best.group.name: best.setting.labels for best in chosen}
    num_tried = 1 if judged_on == FRESH else max((best.num_settings for best in chosen), default=1)
    sentence = _sentence(chosen, over, validation, judged_on, judge)
    return Choice(judged, judge, values, judged_on, num_tried, sentence)


def _choose(group: Group, over: Sequence[str], keys: Sequence[str], metric: Metric) -> _Chosen | None:
    """Return the best setting of a group; None without results."""
    settings = group_runs(group.runs, over, keys, metric)
    seeds = [{repetition(run) for run in setting.runs} for setting in settings]
    common = set[str].intersection(*seeds) or set[str].union(*seeds)
    choosing = [run for run in group.runs if repetition(run) in common]
    best = find_winner(group_runs(choosing, over, keys, metric), metric)
    return None if best is None else _Chosen(group, best, choosing, len(settings))


def _not_chosen(groups: Sequence[Group], judge: Metric, validation: Metric) -> list[Run]:
    """Return the runs of groups without a result to choose by. They must have none that would be judged."""
    for group in groups:
        if any(judge.has_result(run) for run in group.runs):
            message = f"{group.name} has results of {judge.name}, but none of {validation.name} to choose by"
            raise ConfigError("--best-over", message)
    return [run for group in groups for run in group.runs]


def _judge(chosen: Sequence[_Chosen], metric: Metric) -> tuple[str, list[Run], Metric]:
    """Return what judges the settings, the runs and the metric."""
    runs = [run for best in chosen for run in best.runs]
    if chosen and all(any(metric.has_result(run) for run in best.fresh) for best in chosen):
        return FRESH, [run for best in chosen for run in best.fresh], metric
    if metric.is_test:
        return TEST, runs, metric
    phase, _, rest = metric.name.partition("/")
    if phase not in _TESTS:
        return SAME, runs, metric
    name = f"{_TESTS[phase]}/{rest}"
    test = replace(metric, name=name, bounds=bounds_of(name, runs))
    with_result = [run for run in runs if metric.has_result(run)]
    if with_result and all(test.has_result(run) for run in with_result):
        return TEST, runs, test
    return SAME, runs, metric


def _sentence(
    chosen: Sequence[_Chosen], over: Sequence[str], validation: Metric, judged_on: str, judge: Metric
) -> str:
    if not chosen:
        return f"No run has a result of {validation.name}, so no {' and '.join(over)} is chosen."
    if all(best.num_settings == 1 for best in chosen):
        return f"Each group has one {' and '.join(over)} at most, so none is chosen."
    values = "; ".join(f"{c.group.name}: {', '.join(c.setting.labels.values())}" for c in chosen)
    text = f"The best {' and '.join(over)} of each group, chosen by {validation.name}, is shown ({values})."
    if judged_on == FRESH:
        seeds = sorted({repetition(run) for best in chosen for run in best.fresh})
        return f"{text} It is judged on {judge.name} of fresh seeds, which did not choose it ({', '.join(seeds)})."
    remedy = "Fresh seeds of the best settings give fair means."
    if judged_on == TEST:
        return f"{text} It is judged on {judge.name} of the same runs, so the means may be too good. {remedy}"
    means = "the comparisons are corrected for that, but the means are too good"
    return f"{text} It is judged on the results that chose it: {means}. {remedy}"
