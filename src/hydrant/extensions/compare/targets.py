"""Targets: when runs reach one, with performance profiles and the AlgoPerf score; and whether means do."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from hydrant.config.metric_keys import Target
from hydrant.errors import first_few
from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.groups import Group, Metric, bounds_of, group_runs, independent
from hydrant.extensions.compare.run import REPEAT, Run, repetition, setting_of
from hydrant.extensions.compare.sources import Question
from hydrant.terminal.text import number

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
    corrected = iter(statistics.holm([test.p for test in tests.values() if test.p is not None]))
    for name, test in tests.items():
        if test.p is not None:
            tests[name] = replace(test, p_holm=min(1.0, num_looks**2 * next(corrected)))
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
        level = float(stats.norm.sf(question.critical / question.sigma))
        sign = ">=" if (test.statistic or 0.0) >= question.critical else "<"
        return (
            f"margin * sqrt(n) = {number(test.statistic)} {sign} {question.critical:g}, n = {test.num}; "
            f"the rule is a {words} at {level:.2g}"
        )
    return f"{words}, p (Holm) {statistics.p_value(test.p_holm)}, n = {test.num}"
