"""Groups beside each other: the winner, the baseline, the differences, the noise, and the seeds that show one."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hydrant.config.schema import REPETITIONS
from hydrant.errors import ConfigError, check_known, quoted
from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.groups import Group, Metric, Terms, independent
from hydrant.extensions.compare.run import equals_label, label
from hydrant.runs.folder import choices_in
from hydrant.terminal.text import interval, number


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


_RATIOS = (2.0, 1.0, 0.5)
"""Differences in standard deviations whose number of seeds is shown."""


@dataclass(frozen=True)
class Seeds:
    """The seeds for a power of 80 %, at the estimated noise and at the ends of its interval; None: more than 10,000."""

    needed: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Need:
    """The seeds that a true difference needs."""

    difference: float
    about: str  # what the difference is
    paired: Seeds | None  # None: the noise of pairs is unknown
    unpaired: Seeds


@dataclass(frozen=True)
class NoiseFloor:
    """The scatter of results over seeds."""

    groups: Mapping[str, statistics.Spread]
    pooled: statistics.Spread
    bartlett_p: float | None  # p-value that all groups scatter alike; None: undefined
    compared: Sequence[str]  # the groups whose noise determines the needed seeds
    unpaired: statistics.Spread  # of the results of these groups
    paired: statistics.Spread | None  # of the differences of pairs with the same seed
    # For which a test of fresh seeds is corrected, as that of the verdict without earlier looks.
    num_comparisons: int
    needs: Sequence[Need]
    sentences: Sequence[str]
    num_looks: int = 1  # at these seeds


def find_noise_floor(
    groups: Sequence[Group],
    best: Sequence[Group],
    terms: Terms,
    difference: float | None = None,
    num_comparisons: int | None = None,
) -> NoiseFloor:
    """Return the noise floor.

    Args:
        best: the winner and the runner-up, or as many as there are.
        difference: a true difference whose number of seeds is asked for.
        num_comparisons: for which a test of the winner by fresh seeds is corrected; None: those with its rivals.
    """
    num_rivals = max(sum(group.estimate.mean is not None for group in groups) - 1, 1)
    num_comparisons = num_comparisons or terms.num_tried * num_rivals
    floor = replace(measured_noise(groups, best), num_comparisons=num_comparisons, num_looks=terms.num_looks)
    if floor.unpaired.std and not terms.has_folds:
        floor = replace(floor, needs=_needs(floor, floor.unpaired.std, best, difference))
    are_exact = all(len({*group.results.values()}) < 2 for group in groups)
    return replace(floor, sentences=_sentences(floor, best, terms, are_exact=are_exact))


def measured_noise(groups: Sequence[Group], best: Sequence[Group]) -> NoiseFloor:
    """Return the noise alone, without what follows from it."""
    samples = {group.name: independent(group.results) for group in groups}
    pooled, p = statistics.spread(list(samples.values())), statistics.bartlett(list(samples.values()))
    scatter_alike = p is None or p >= statistics.SIGNIFICANCE
    compared = [group for group in (groups if scatter_alike else best) if len(group.results) > 1]
    unpaired = statistics.spread([samples[group.name] for group in compared])
    paired, names = _paired(compared), [group.name for group in compared]
    scatter = {name: statistics.spread([sample]) for name, sample in samples.items()}
    return NoiseFloor(scatter, pooled, p, names, unpaired, paired, 1, [], [])


def _paired(groups: Sequence[Group]) -> statistics.Spread | None:
    """Return the spread of the difference of two groups over the seeds that all groups share; None if unknown."""
    if len(groups) < 2:
        return None
    shared = [labels for labels in groups[0].results if all(labels in g.results for g in groups)]
    table = [independent({name: group.results[name] for name in shared}) for group in groups]
    return statistics.paired_spread(table) if len(shared) > 1 else None


def _needs(floor: NoiseFloor, std: float, best: Sequence[Group], difference: float | None) -> list[Need]:
    sizes = [(ratio * std, f"{ratio:g} std") for ratio in _RATIOS]
    means = [group.estimate.mean for group in best if group.estimate.mean is not None]
    if len(means) == 2 and means[0] != means[1]:
        sizes.insert(0, (abs(means[0] - means[1]), "best - second"))
    if difference is not None:
        sizes.insert(0, (difference, "--difference"))
    num = floor.num_comparisons
    pairs = floor.paired if floor.paired is not None and floor.paired.std else None
    return [
        Need(size, about, pairs and _seeds(size, pairs, 1.0, num), _seeds(size, floor.unpaired, 2**0.5, num))
        for size, about in sizes
    ]


def _seeds(difference: float, noise: statistics.Spread, factor: float, num_comparisons: int) -> Seeds:
    """`factor`: of the noise of a difference to this noise."""
    stds = (None if std is None else factor * std for std in (noise.std, noise.low, noise.high))
    return Seeds(
        *(None if std is None else statistics.seeds_needed(difference, std, num_comparisons) for std in stds)
    )


def _sentences(floor: NoiseFloor, best: Sequence[Group], terms: Terms, *, are_exact: bool) -> list[str]:
    pooled, metric = floor.pooled, terms.metric.name
    if pooled.degrees == 0:
        return [
            f"The noise of {metric} is unknown, because every group has one result or none. "
            "A second seed shows it: seed=0,1."
        ]
    if pooled.std == 0.0:
        rounding = "" if are_exact else ", but for the rounding of float32 numbers"
        same = f"{metric} is the same for all {terms.repetitions} of every group{rounding}"
        return [f"{same}, so no noise can be measured."]
    num = sum(noise.degrees > 0 for noise in floor.groups.values())
    sentences = [
        f"Over {terms.repetitions}, {metric} scatters with a standard deviation of {number(pooled.std)} (95 % interval "
        f"{interval(pooled.low, pooled.high)}, {pooled.degrees} degrees of freedom, {num} group{'s' * (num != 1)})."
    ]
    if floor.bartlett_p is not None and floor.bartlett_p < statistics.SIGNIFICANCE:
        names = " and ".join(floor.compared)
        needed = f" The seeds needed are for {names}." if floor.needs else ""
        sentences.append(
            f"The groups scatter differently (Bartlett's test, p {statistics.p_value(floor.bartlett_p)}), "
            f"so the pooled value describes none of them.{needed}"
        )
    sentences += _power_sentences(floor, best)
    if floor.needs:
        sentences.append(
            "The numbers assume normally distributed results and a true difference of that size. An observed lead "
            "is often larger than the true one. Other data, models and budgets may give other numbers."
        )
    return sentences


def _power_sentences(floor: NoiseFloor, best: Sequence[Group]) -> list[str]:
    num_pairs = difference(*best).num_pairs if len(best) == 2 else 0
    if not floor.needs or floor.paired is None or not floor.paired.std or num_pairs < 2:
        return []
    num = floor.num_comparisons * floor.num_looks**2
    size = number(statistics.detectable_difference(floor.paired.std, num_pairs, num))
    test = f"paired t-test at 5 %{statistics.corrected_for(num)}"
    return [f"{num_pairs} paired seeds reliably (80 %) detect differences of {size} or more ({test})."]


def seeds_text(seeds: Seeds | None) -> str:
    """Return a number of seeds with its range: `12 (5 to 60)`.

    >>> seeds_text(Seeds(12, 5, None)), seeds_text(None)
    ('12 (5 to >10000)', '-')
    """
    if seeds is None:
        return "-"
    nums = (seeds.needed, seeds.low, seeds.high)
    needed, low, high = (f">{statistics.MAX_SEEDS}" if num is None else str(num) for num in nums)
    return f"{needed} ({low} to {high})"
