"""How often the verdict of `hydrant compare` is "decided": at most 5 in 100 times without a difference, and 70 to 80
times with one and the seeds that it advises.

The rule is written here a second time, for many sweeps at once, and compared with the verdict itself.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from marks import slow
from planted import runs_of
from scipy import special, stats

from hydrant.extensions.compare.groups import Group, Metric, Terms, group_runs
from hydrant.extensions.compare.ranking import find_noise_floor
from hydrant.extensions.compare.statistics import Spread, estimate
from hydrant.extensions.compare.verdict import find_verdict

Array = npt.NDArray[np.float64]

NUM_SWEEPS = 10_000
LIMIT = 0.05 + 3 * (0.05 * 0.95 / NUM_SWEEPS) ** 0.5
"""The rate of 5 %, and three standard errors of counting it in so many sweeps."""


TERMS = Terms(Metric("val/accuracy", "max"), "folds")
"""For folds, no seeds are advised, which takes most of the time and decides nothing."""
UNKNOWN = find_noise_floor([], [], TERMS)


def mean_and_square(values: Array, counted: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the mean over the counted values of each row, and the square of its standard error."""
    nums = counted.sum(axis=2)
    means = np.where(counted, values, 0.0).sum(axis=2) / nums
    squares = np.where(counted, (values - means[..., None]) ** 2, 0.0).sum(axis=2)
    return means, squares / (nums - 1) / nums


def are_decided(
    results: Array, nums: Sequence[int], *, is_paired: bool, num_tried: int = 1
) -> npt.NDArray[np.bool_]:
    """Return which sweeps are decided.

    Args:
        results: (sweeps, settings, seeds).
        nums: how many of these seeds each setting has.
        num_tried: of how many each setting is the best one.
    """
    counts = np.asarray(nums)
    counted = np.broadcast_to(np.arange(results.shape[2]) < counts[:, None], results.shape)
    means, squares = mean_and_square(results, counted)
    leaders = means.argmax(axis=1)[:, None]
    degrees = np.minimum(counts[leaders], counts) - 1
    if is_paired:
        best, both = leaders[..., None], np.arange(results.shape[2]) <= degrees[..., None]
        gap, errors = mean_and_square(np.take_along_axis(results, best, axis=1) - results, both)
    else:
        gap = np.take_along_axis(means, leaders, axis=1) - means
        errors = np.take_along_axis(squares, leaders, axis=1) + squares
    p = 2 * special.stdtr(degrees, -abs(gap) / np.where(errors > 0, errors, np.inf) ** 0.5)
    np.put_along_axis(p, leaders, np.nan, axis=1)  # sorted to the end
    ordered = np.sort(np.where(gap < 0, 1.0, p), axis=1)[:, :-1]
    factors = num_tried * np.arange(ordered.shape[1], 0, -1)
    return (ordered * factors < 0.05).all(axis=1)


def sweep_of(results: Array, nums: Sequence[int], *, is_paired: bool) -> list[Group]:
    """Return the groups of one sweep; without pairs, no two settings have a seed in common."""
    groups: list[Group] = []
    for n, (row, num) in enumerate(zip(results, nums, strict=True)):
        values = row[:num].tolist()
        labels = [str(seed) if is_paired else f"{n} {seed}" for seed in range(num)]
        found = dict(zip(labels, values, strict=True))
        groups.append(Group({"optimizer": f"o{n}"}, [], {}, found, estimate(values), {}, {}))
    return groups


def is_decided(
    results: Array, nums: Sequence[int], *, is_paired: bool, num_tried: int = 1, num_looks: int = 1
) -> bool:
    groups = sweep_of(results, nums, is_paired=is_paired)
    verdict = find_verdict(groups, UNKNOWN, replace(TERMS, num_tried=num_tried, num_looks=num_looks))
    return verdict.status == "decided"


@pytest.mark.parametrize(("num_tried", "num_looks"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize(
    ("nums", "lead"), [((2, 2), 20), ((3, 3, 3), 3), ((5, 3, 4), 4), ((10, 10, 10, 10), 1)]
)
def test_the_verdict_follows_the_rule(
    nums: tuple[int, ...], lead: float, is_paired: bool, num_tried: int, num_looks: int
) -> None:
    """A further look counts each comparison as often as its number squared."""
    shape = (20, len(nums), max(nums))
    results = np.random.default_rng(0).normal(size=shape) + lead * np.arange(len(nums))[:, None]
    expected = are_decided(results, nums, is_paired=is_paired, num_tried=num_tried * num_looks**2)
    found = [
        is_decided(sweep, nums, is_paired=is_paired, num_tried=num_tried, num_looks=num_looks)
        for sweep in results
    ]
    assert found == expected.tolist()
    assert 0 < sum(found) < len(found)


def test_the_interval_of_the_lead_agrees_with_holm_and_holds() -> None:
    """It excludes 0 exactly where Holm's test finds the lead, and contains the true one in 95 of 100 sweeps."""
    num_seeds, true = 4, np.array([1.6, 0.0, -0.8])
    results = np.random.default_rng(0).normal(size=(400, 3, num_seeds)) + true[:, None]
    num_held, num_cut = 0, 0
    for sweep in results:
        groups = sweep_of(sweep, [num_seeds] * 3, is_paired=True)
        verdict = find_verdict(groups, UNKNOWN, TERMS)
        lead = verdict.lead
        assert lead is not None
        assert lead.low is not None
        assert lead.high is not None
        assert lead.p_holm is not None
        assert (lead.low >= 0) == (lead.p_holm < 0.05)
        gap = dict(zip((group.name for group in groups), true, strict=True))
        num_held += lead.low <= gap[str(verdict.leader)] - gap[str(verdict.rival)] <= lead.high
        num_cut += lead.low == 0
    assert num_cut > 0, "else Bonferroni's interval alone would do"
    assert num_held / len(results) >= 0.95 - 3 * (0.05 * 0.95 / len(results)) ** 0.5


@pytest.mark.parametrize(
    ("looks", "rate", "uncorrected"),
    [((3, 5), 0.057, 0.087), ((3, 5, 7, 9, 11), 0.061, 0.15), (range(2, 16), 0.064, 0.23)],
)
@pytest.mark.parametrize("is_paired", [True, False])
def test_seeds_that_are_added_until_it_is_decided_hardly_decide_by_chance(
    looks: Sequence[int], rate: float, uncorrected: float, is_paired: bool
) -> None:
    """A user who adds seeds to an undecided sweep looks as often as its folder records."""
    results = np.random.default_rng(0).normal(size=(NUM_SWEEPS, 2, looks[-1]))
    rates = list[float]()
    for counts in (lambda look: look**2, lambda look: 1):
        found = np.zeros(NUM_SWEEPS, bool)
        for look, num in enumerate(looks, 1):
            found |= are_decided(results[..., :num], (num, num), is_paired=is_paired, num_tried=counts(look))
        rates.append(float(found.mean()))
    noise = 3 * (rate * (1 - rate) / NUM_SWEEPS) ** 0.5
    assert rates[0] <= rate + noise
    assert rates[1] == pytest.approx(uncorrected, abs=0.02) or not is_paired


def test_near_copies_of_seeds_decide_nothing_more_often() -> None:
    """Two equal optimizers with three seeds, each with four values of micro_batch_size, which hardly change a result.

    If each copy were a pair, 13 of 24 such sweeps would be decided.
    """
    num_sweeps, noise = 200, np.random.default_rng(0)
    metric, keys = Metric("val/accuracy", "max"), ["optimizer", "micro_batch_size", "seed"]
    results = noise.normal(0, 0.01, (num_sweeps, 2, 1, 3)) + noise.normal(0, 0.0005, (num_sweeps, 2, 4, 3))
    sweeps = [group_runs(runs_of(sweep, keys), ["optimizer"], keys, metric) for sweep in results]
    counted = np.array([[[*group.results.values()] for group in groups] for groups in sweeps])
    assert counted == pytest.approx(results.mean(axis=2))
    limit = 0.05 + 3 * (0.05 * 0.95 / num_sweeps) ** 0.5
    assert are_decided(counted, (3, 3), is_paired=True).mean() <= limit
    copies = results.reshape(num_sweeps, 2, 12)
    assert are_decided(copies, (12, 12), is_paired=True).mean() > 0.4


@pytest.mark.parametrize(
    ("shape", "num_sweeps"),
    [((2, 3, 3), 60), *slow(((2, 3, 3), 600), ((2, 5, 3), 600), ((2, 2, 10), 600), ((3, 3, 3), 600))],
)
@pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0)], ids=str)
def test_crossed_repetitions_are_no_independent_pairs(
    shape: tuple[int, ...], num_sweeps: int, scales: tuple[float, float]
) -> None:
    """Equal optimizers, with the same seeds for each choice of wrong labels: both draw a difference of the optimizers.

    With each run as a pair of its own, a third to a half of such sweeps would be decided: of 60, more than the 10 that
    are allowed, but for 3 of 1,000 times.
    """
    noise, (num, num_labels, num_seeds) = np.random.default_rng(1), shape
    metric, keys = Metric("val/accuracy", "max"), ["optimizer", "label_noise_seed", "seed"]
    decided = as_pairs = 0
    for _ in range(num_sweeps):
        results = noise.normal(0, scales[0], (num, 1, num_seeds)) + noise.normal(
            0, scales[1], (num, num_labels, 1)
        )
        results = 0.5 + 0.01 * (results + noise.normal(0, 0.1, shape) + noise.normal(0, 5, shape[1:]))
        groups = group_runs(runs_of(results, keys), ["optimizer"], keys, metric)
        assert [g.estimate.mean for g in groups] == pytest.approx(results.mean(axis=(1, 2)))
        decided += find_verdict(groups, UNKNOWN, TERMS).status == "decided"
        as_pairs += int(are_decided(results.reshape(1, num, -1), [results[0].size] * num, is_paired=True)[0])
    assert decided <= stats.binom.isf(0.001, num_sweeps, 0.05) < as_pairs


UNEQUAL = [(2, 10), (2, 3), (3, 10), (2, 5, 10), (10, 2, 2, 2), (10, 9, 8, 7, 6, 5, 4, 3, 2)]


@pytest.mark.parametrize("is_paired", [True, False])
@pytest.mark.parametrize(
    "nums",
    [
        *[(n,) * k for k in (2, 3, 12) for n in (2, 3, 10)],
        *UNEQUAL,
        *slow(
            *[
                ((n,) * k,)
                for k in range(2, 13)
                for n in range(2, 11)
                if k not in (2, 3, 12) or n not in (2, 3, 10)
            ]
        ),
    ],
)
def test_sweeps_without_a_difference_are_rarely_decided(nums: tuple[int, ...], is_paired: bool) -> None:
    """Also if the settings scatter differently, if results are counts, as an accuracy of few samples is, and if the
    best two of them do not differ but all others are worse.
    """
    num = len(nums)
    results = np.random.default_rng(0).normal(size=(NUM_SWEEPS, num, max(nums)))
    scales, tied = np.geomspace(0.1, 10, num)[:, None], results.copy()
    tied[:, 2:] -= 100
    for sweeps in (results, results * scales, results * scales[::-1], results.round(), (2 * results).round()):
        assert are_decided(sweeps, nums, is_paired=is_paired).mean() <= (LIMIT if num == 2 else 0.02)
    assert are_decided(tied, nums, is_paired=is_paired).mean() <= LIMIT


@pytest.mark.parametrize("num_tried", [1, 8])
@pytest.mark.parametrize("num_settings", [2, 3, 8, 12])
@pytest.mark.parametrize(
    ("lead", "is_paired"),
    [(6.0, True), (1.5, True), (1.0, True), (0.5, True), (6.0, False), (1.0, False), (0.5, False)],
)
def test_a_true_lead_is_decided_with_the_promised_power(
    lead: float, is_paired: bool, num_settings: int, num_tried: int
) -> None:
    """The advised seeds decide 80 of 100 sweeps of two settings, and 70 if all others are as close as the rival."""
    observed = np.zeros((num_settings, 2))
    observed[0] = lead - 1000, lead + 1000
    groups = sweep_of(observed, [2] * num_settings, is_paired=is_paired)
    scatter = Spread(4, 2, 1.0, None, None)
    noise = replace(UNKNOWN, unpaired=scatter, paired=replace(scatter, std=2**0.5))
    seeds = find_verdict(groups, noise, replace(TERMS, repetitions="seeds", num_tried=num_tried)).seeds_needed
    assert seeds is not None
    results = np.random.default_rng(0).normal(size=(4000, num_settings, seeds))
    results[:, 0] += lead
    nums = [seeds] * num_settings
    assert are_decided(results, nums, is_paired=is_paired, num_tried=num_tried).mean() >= (
        0.78 if num_settings == 2 else 0.69
    )


@pytest.mark.parametrize("nums", [(8, 8), (8, 1), (20, 5)])
@pytest.mark.parametrize("num_seeds", [2, 3, 10])
@pytest.mark.parametrize("correlation", [1.0, 0.95, 0.8, 0.5, 0.0])
def test_choosing_by_the_same_runs_decides_no_more_often(
    nums: tuple[int, int], num_seeds: int, correlation: float
) -> None:
    """All settings are equally good. The validation chooses, a test judges that correlates with it in each run.

    With the same results, the correlation is 1. Without the correction, 11 of 100 sweeps of 8 rates and 1 would be
    decided with 10 seeds, and 10 with a correlation of 0.95.
    """
    noise, chosen = np.random.default_rng(0), list[Array]()
    for num in nums:
        validation, other = noise.normal(size=(2, NUM_SWEEPS, num, num_seeds))
        test = correlation * validation + (1 - correlation**2) ** 0.5 * other
        best = validation.mean(axis=2).argmax(axis=1)
        chosen.append(test[np.arange(NUM_SWEEPS), best])
    results, both = np.stack(chosen, axis=1), (num_seeds, num_seeds)
    assert are_decided(results, both, is_paired=True, num_tried=max(nums)).mean() <= LIMIT
    if nums == (8, 1) and correlation > 0.9 and num_seeds == 10:
        assert are_decided(results, both, is_paired=True).mean() > LIMIT
