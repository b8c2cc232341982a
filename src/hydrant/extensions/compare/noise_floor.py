"""The noise floor of a sweep, and how many seeds a difference needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.groups import Group, Terms, independent
from hydrant.extensions.compare.ranking import difference
from hydrant.terminal.text import interval, number

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
    num_comparisons: int = 1,
) -> NoiseFloor:
    """Return the noise floor.

    Args:
        best: the winner and the runner-up, or as many as there are.
        difference: a true difference whose number of seeds is asked for.
        num_comparisons: for which a test of the winner by fresh seeds is corrected.
    """
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
