"""Groups beside each other: the winner, the baseline, the differences, the noise; and beside a target.

The noise says how many seeds show a difference. For a target, there is when runs reach it, with performance profiles
and the AlgoPerf score, and whether means do.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from hydrant.config.groups import REPETITIONS
from hydrant.config.metric_keys import Target
from hydrant.errors import ConfigError, check_known, first_few, quoted
from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.groups import Group, Metric, Terms, bounds_of, group_runs, independent
from hydrant.extensions.compare.run import REPEAT, Run, equals_label, label, repetition, setting_of
from hydrant.extensions.compare.sources import Question
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
    """Return the groups by their means, equal but for rounding in their order; those without a result come last."""
    return sorted(groups, key=lambda group: float(f"{metric.rank(group.estimate.mean):.12g}"))


def passed_over(groups: Sequence[Group], winner: Group | None, metric: Metric) -> list[Group]:
    """Return the incomplete groups with a better mean than the winner."""
    limit = -math.inf if winner is None else metric.rank(winner.estimate.mean)
    return [group for group in groups if group.without_result and metric.rank(group.estimate.mean) < limit]


def with_differences(groups: Sequence[Group], baseline: Group, num_tried: int = 1) -> list[Group]:
    """Return the groups with their differences from the baseline.

    Args:
        num_tried: of how many settings each group is the best one by the same runs. Each counts as a comparison.
    """
    differences = [difference(group, baseline) for group in groups if group is not baseline]
    gaps = iter(statistics.corrected(differences, num_tried))
    return [replace(group, versus=None if group is baseline else next(gaps)) for group in groups]


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
    floor = replace(measured_noise(groups, best), num_comparisons=num_comparisons)
    if floor.unpaired.std and not terms.has_folds:
        floor = replace(floor, needs=_needs(floor, floor.unpaired.std, best, difference))
    are_exact = all(len({*group.results.values()}) < 2 for group in groups)
    return replace(floor, sentences=_sentences(floor, terms, are_exact=are_exact))


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
    num, noise = floor.num_comparisons, floor.unpaired
    pairs = floor.paired if floor.paired is not None and floor.paired.std else None
    return [
        Need(size, about, _seeds(size, pairs, 1.0, num) if pairs else None, _seeds(size, noise, 2**0.5, num))
        for size, about in sizes
    ]


def _seeds(difference: float, noise: statistics.Spread, factor: float, num_comparisons: int) -> Seeds:
    """`factor`: of the noise of a difference to this noise."""
    stds = (None if std is None else factor * std for std in (noise.std, noise.low, noise.high))
    return Seeds(
        *(None if std is None else statistics.seeds_needed(difference, std, num_comparisons) for std in stds)
    )


def _sentences(floor: NoiseFloor, terms: Terms, *, are_exact: bool) -> list[str]:
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
    if floor.needs:
        sentences.append(
            "The numbers assume normally distributed results and a true difference of that size. An observed lead "
            "is often larger than the true one. Other data, models and budgets may give other numbers."
        )
    return sentences


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


UNITS: tuple[str, ...] = ("updates", "samples", "seconds")

_WORKLOAD = ("data", "model", "task", "experiment")
"""The config groups that define what is trained, not how."""

MAX_TAU = 4.0

NUM_POINTS = 100
"""A performance profile has this many points from 1 to MAX_TAU, as in AlgoPerf's scorer."""


def time_to_target(run: Run, target: Target) -> dict[str, float]:
    """Return when a run first reached a target, by unit: infinite if it did not, NaN if the time is unknown."""
    series = run.series.get(target.metric)
    if series is None:
        return dict.fromkeys(UNITS, math.inf)
    is_reached = series.values >= target.value if target.mode == "max" else series.values <= target.value
    if not is_reached.any():
        return dict.fromkeys(UNITS, math.inf)
    updates = series.updates[int(np.argmax(is_reached))]
    return {
        "updates": float(updates),
        "samples": math.nan if run.batch_sizes is None else float(run.batch_sizes.total(int(updates))),
        "seconds": float(run.seconds(np.array([updates]))[0]),
    }


def workload_time(studies: Mapping[str, Sequence[float]]) -> float:
    """Return the time of a submission on a workload: the median over its studies of the fastest trial.

    >>> workload_time({"0": [3.0, 5.0], "1": [math.inf, 4.0], "2": [math.inf]})
    4.0
    """
    return float(np.median([min(times) for times in studies.values()]))


@dataclass(frozen=True)
class GroupTime:
    """The number of runs of a group that reached the target, and the median time over seeds (and folds), by unit."""

    num_reached: int
    times: Mapping[str, float]  # infinite if half of them did not reach it, NaN if a time is unknown


def group_time(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> GroupTime:
    """Return when a group of runs reached the target. For each seed (and fold), the fastest run counts."""
    counted = [run for run in runs if run.state != REPEAT]
    medians: dict[str, float] = {}
    for unit in UNITS:
        studies: dict[str, list[float]] = {}
        for run in counted:
            studies.setdefault(repetition(run), []).append(times[run.name][unit])
        is_known = not any(math.isnan(times[run.name][unit]) for run in counted)
        medians[unit] = workload_time(studies) if is_known else math.nan
    return GroupTime(sum(math.isfinite(times[run.name]["updates"]) for run in counted), medians)


@dataclass(frozen=True)
class Profile:
    """For each submission, the ratio of workloads on which it is within `tau` of the fastest, and its score."""

    taus: Sequence[float]
    ratios: Mapping[str, Sequence[float]]
    scores: Mapping[str, float]


def profile(times: Mapping[str, Mapping[str, float]]) -> Profile:
    """Return the performance profiles of submissions, from their times on workloads (infinite: not reached).

    The score is the integral of a profile from 1 to 4, divided by 3, by the trapezoidal rule on 100 points as in
    AlgoPerf's scorer. A workload that no submission reached counts against all of them.
    """
    taus = np.linspace(1.0, MAX_TAU, NUM_POINTS)
    workloads = sorted({workload for by_workload in times.values() for workload in by_workload})
    fastest = {w: min(by_workload.get(w, math.inf) for by_workload in times.values()) for w in workloads}
    ratios: dict[str, list[float]] = {}
    for submission, by_workload in times.items():
        slowdowns = [_slowdown(by_workload.get(w, math.inf), fastest[w]) for w in workloads]
        ratios[submission] = np.mean(np.array(slowdowns)[:, None] <= taus, axis=0).tolist()
    scores = {name: float(np.trapezoid(curve, taus)) / (MAX_TAU - 1) for name, curve in ratios.items()}
    return Profile(taus.tolist(), ratios, scores)


def _slowdown(time: float, fastest: float) -> float:
    """Return `time / fastest`. The fastest time is 0 if the untrained model reaches the target."""
    if not math.isfinite(time):
        return math.inf
    return 1.0 if time == fastest else time / fastest if fastest else math.inf


def profiles(
    runs: Sequence[Run], by: Sequence[str], times: Mapping[str, Mapping[str, float]]
) -> dict[str, Profile]:
    """Return the performance profiles by unit.

    The grouping keys that belong to data, model, task or experiment form the workloads, the others the submissions.
    The seeds and folds are the studies, and all other differences the trials. A unit has no profile if the time of a
    run that reached the target is unknown.
    """
    if not times:
        return {}
    workload_keys = [key for key in by if key in _WORKLOAD]
    submission_keys = [key for key in by if key not in _WORKLOAD]
    if not submission_keys:
        workload_keys, submission_keys = [], list(by)
    by_unit: dict[str, Profile] = {}
    for unit in UNITS:
        if any(math.isnan(of_run[unit]) for of_run in times.values()):
            continue
        # by submission, workload and study: the times of the trials
        submissions: dict[str, dict[str, dict[str, list[float]]]] = {}
        for run in (run for run in runs if run.state != REPEAT):
            workloads = submissions.setdefault(setting_of(run, submission_keys), {})
            studies = workloads.setdefault(setting_of(run, workload_keys), {})
            studies.setdefault(repetition(run), []).append(times[run.name][unit])
        by_unit[unit] = profile(
            {
                submission: {workload: workload_time(studies) for workload, studies in workloads.items()}
                for submission, workloads in submissions.items()
            }
        )
    return by_unit


@dataclass(frozen=True)
class TargetVerdict:
    """The tests of the groups against a fixed target."""

    target: str
    test: str  # in words
    tests: Mapping[str, statistics.TargetTest]  # by group
    passed: Sequence[str]  # the groups that reach the target, by the rule
    sentences: Sequence[str]


def judge_target(
    groups: Sequence[Group], keys: Sequence[str], question: Question, num_looks: int = 1
) -> TargetVerdict | None:
    """Return the verdict; None if no target is given. Look k at the results tests at 5 % / k**2."""
    if (target := question.fixed_target) is None:
        return None
    runs = [run for group in groups for run in group.runs]
    metric = Metric(target.metric, target.mode, bounds_of(target.metric, runs))
    judged = group_runs(runs, [*(groups[0].labels if groups else ())], keys, metric)
    terms = target.value, target.mode, question.sigma, metric.bounds
    tests = {group.name: statistics.beats_target(independent(group.results), *terms) for group in judged}
    tests = dict(sorted(tests.items(), key=lambda item: metric.rank(item[1].mean)))
    tests = dict(zip(tests, statistics.corrected([*tests.values()], num_looks**2), strict=True))
    passed = [name for name, test in tests.items() if _passes(test, question.critical)]
    words = "t-test" if question.sigma is None else f"z-test with sigma {question.sigma:g}"
    verdict = TargetVerdict(str(target), f"one-sided {words}", tests, passed, [])
    by_rule = f"Seeds came after results, so this is look {num_looks} at them, which the rule does not count."
    looks = statistics.looks_text(num_looks) if question.critical is None else by_rule
    sentences = _target_sentences(verdict, question, groups) + [looks] * (num_looks > 1)
    return replace(verdict, sentences=sentences)


def _passes(test: statistics.TargetTest, critical: float | None) -> bool:
    if critical is not None:
        return test.statistic is not None and test.statistic >= critical
    return test.p_holm is not None and test.p_holm < statistics.SIGNIFICANCE


def _target_sentences(verdict: TargetVerdict, question: Question, groups: Sequence[Group]) -> list[str]:
    sentences: list[str] = []
    if verdict.passed:
        worst = max(verdict.passed, key=lambda name: verdict.tests[name].p or 0.0)
        evidence = _evidence(verdict.tests[worst], verdict.test, question)
        weakest = "" if len(verdict.passed) == 1 else "weakest evidence: "
        sentences.append(
            f"{first_few(verdict.passed, noun=' groups')} reach{'es' * (len(verdict.passed) == 1)} {verdict.target}: "
            f"the true mean is better ({weakest}{evidence})."
        )
    untested = [name for name, test in verdict.tests.items() if test.p is None]
    if open_ones := [name for name in verdict.tests if name not in (*verdict.passed, *untested)]:
        closest = min(open_ones, key=lambda name: verdict.tests[name].p or 0.0)
        sentences.append(
            f"Not shown for {len(open_ones)} of {len(groups)} groups; closest is {closest} "
            f"({_evidence(verdict.tests[closest], verdict.test, question)}). "
            "This does not show that a group misses the target: fresh seeds of a new sweep may decide it."
        )
    if untested:
        few = "fewer than two different results. Add seeds, or give a known noise: --sigma."
        reason = few if question.sigma is None else "no result."
        sentences.append(f"No test for {len(untested)} of {len(groups)} groups, because they have {reason}")
    if incomplete := [group.name for group in groups if group.without_result]:
        named = first_few(incomplete, noun=" groups")
        sentences.append(f"The means leave out runs without a result, in {named}.")
    if question.sigma is not None:
        sentences.append("The test is valid only if sigma is right, which these runs do not check.")
    return sentences


def _evidence(test: statistics.TargetTest, words: str, question: Question) -> str:
    if question.critical is not None and question.sigma is not None:
        level = float(special.ndtr(-question.critical / question.sigma))
        sign = ">=" if (test.statistic or 0.0) >= question.critical else "<"
        return (
            f"margin * sqrt(n) = {number(test.statistic)} {sign} {question.critical:g}, n = {test.num}; "
            f"the rule is a {words} at {level:.2g}"
        )
    return f"{words}, p (Holm) {statistics.p_value(test.p_holm)}, n = {test.num}"
