"""The verdict about a fixed target: which groups reach it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from hydrant.commands.compare import statistics
from hydrant.commands.compare.groups import Group, Metric, bounds_of, group_runs, independent
from hydrant.commands.compare.question import Question
from hydrant.errors import first_few
from hydrant.terminal.text import number


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
    looks = statistics.looks_text(num_looks)
    if question.critical is not None:
        looks = (
            f"Seeds came after results, so this is look {num_looks} at them, which the rule does not count."
        )
    return replace(verdict, sentences=_sentences(verdict, question, groups) + [looks] * (num_looks > 1))


def _passes(test: statistics.TargetTest, critical: float | None) -> bool:
    if critical is not None:
        return test.statistic is not None and test.statistic >= critical
    return test.p_holm is not None and test.p_holm < statistics.SIGNIFICANCE


def _sentences(verdict: TargetVerdict, question: Question, groups: Sequence[Group]) -> list[str]:
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
