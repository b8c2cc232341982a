"""Groups beside each other: the winner, the baseline, and the differences between groups."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from hydrant.checks import unknown_name
from hydrant.commands.compare.config_keys import equals_label, label
from hydrant.commands.compare.groups import Group, Metric
from hydrant.commands.compare.statistics import Difference, holm, paired, unpaired
from hydrant.config.schema import REPETITIONS
from hydrant.errors import ConfigError
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
    corrected = (min(1.0, num_tried * p) for p in holm([*tested, *beside]))
    return [
        replace(g, versus=d if d is None or d.p is None else replace(d, p_holm=next(corrected)))
        for g, d in zip(groups, differences, strict=True)
    ]


def difference(group: Group, other: Group) -> Difference:
    """Return the difference of two groups: of the results with the same labels, such as of the seed.

    Without at least two such pairs, or with pairs for less than half of the smaller group, it is that of all results.
    """
    shared, overlap = [labels for labels in group.results if labels in other.results], overlap_of(group)
    smaller = min(len(group.results), len(other.results))
    if len(shared) < min(2, smaller) or 2 * len(shared) < smaller:
        return unpaired([*group.results.values()], [*other.results.values()], overlap)
    values, others = ([g.results[labels] for labels in shared] for g in (group, other))
    return paired(values, others, overlap)


def overlap_of(group: Group) -> float:
    """Return how many validation samples a split has for each training sample; 0 if all runs have the same split."""
    runs = group.runs
    config = runs[0].config if runs else {}
    keys = [key for key in REPETITIONS if len({label(run, key) for run in runs}) > 1]
    folds = config.get("folds") if {"fold", "fold_seed"} & {*keys} else None
    if isinstance(folds, int) and folds > 1:
        return 1 / (folds - 1)
    ratio = config.get("data.val_ratio") if "data.split_seed" in keys else None
    return ratio / (1 - ratio) if isinstance(ratio, float) and 0 < ratio < 1 else 0.0


def find_baseline(groups: Sequence[Group], text: str) -> Group:
    """Return the only group that matches a text such as `optimizer=sgd,scheduler=cosine`.

    Raises:
        ConfigError: no group matches, or several do.
    """
    conditions = choices_in(re.split(r",(?=[\w@./]+=)", text))
    keys = groups[0].labels if groups else {}
    for key in conditions:
        if key not in keys:
            raise unknown_name("--baseline", "key", key, keys)
    matches = [g for g in groups if all(equals_label(v, g.labels[k]) for k, v in conditions.items())]
    if len(matches) != 1:
        names = ", ".join(group.name.replace(" ", ",") for group in (matches or groups)[:10])
        problem = "matches no group" if not matches else f"matches {len(matches)} groups"
        raise ConfigError("--baseline", f"{text!r} {problem}", remedy=f"give one of: {names}")
    return matches[0]
