"""The verdict: whether one setting is better than all others, in one sentence.

The setting with the best mean is tested against every other one by two-sided t-tests at 5 %, corrected by Holm. It is
decided if all of them show that it is better. `tests/commands/compare/test_verdict_rate.py` counts how often that
happens without any difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hydrant.commands.compare.evidence.power import MAX_SEEDS, SIGNIFICANCE, seeds_needed
from hydrant.commands.compare.groups import Group, Metric, best_first, find_winner, with_differences
from hydrant.commands.compare.numbers import interval, number, p_value, two_digits
from hydrant.commands.compare.statistics import Difference, are_equal
from hydrant.commands.compare.verdicts.noise_floor import NoiseFloor

Status = Literal["decided", "undecided", "one_setting", "no_runs"]


@dataclass(frozen=True)
class Verdict:
    """What the results decide."""

    status: Status  # "no_runs": no run has a result; "one_setting": there is nothing to compare it with
    sentence: str
    winner: str | None = None  # None unless it is decided
    leader: str | None = None  # the setting with the best mean
    rival: str | None = None  # the one that the sentence compares it with
    lead: Difference | None = None  # of the leader over the rival; `p_holm` decides
    num_comparisons: int = 0
    seeds_needed: int | None = None  # for a power of 80 %, if the true lead is the observed one

    def __str__(self) -> str:
        return self.sentence


def find_verdict(
    groups: Sequence[Group], noise: NoiseFloor, metric: Metric, repetitions: str, num_tried: int = 1
) -> Verdict:
    """Return the verdict about groups.

    Args:
        num_tried: of how many settings each group is the best one by the same results. Each counts as a comparison.
    """
    leader = find_winner(groups, metric)
    if leader is None:
        return Verdict("no_runs", _nothing(groups, metric))
    if len(groups) == 1:
        return Verdict("one_setting", _alone(leader, metric, repetitions), leader=leader.name)
    rivals = [group for group in groups if group is not leader and group.estimate.mean is not None]
    rivals = best_first(with_differences(rivals, leader), metric)
    rivals = [replace(rival, versus=_corrected(rival.versus, num_tried)) for rival in rivals]
    open_ones = [rival for rival in rivals if not _is_beaten(rival, metric)]
    if not rivals:
        sentence = (
            f"Undecided: only {short_name(leader)} has results, so there is nothing to compare it with."
        )
        return Verdict("undecided", sentence, leader=leader.name)
    rival = (open_ones or rivals)[0]
    assert rival.versus is not None
    is_decided = not open_ones and not leader.without_result
    case = _Case(leader, rival, rival.versus, len(rivals) * num_tried, noise, metric, repetitions)
    return Verdict(
        "decided" if is_decided else "undecided",
        case.decided if is_decided else case.undecided,
        leader.name if is_decided else None,
        leader.name,
        rival.name,
        case.lead,
        case.num_comparisons,
        None if is_decided else case.seeds,
    )


def _corrected(versus: Difference | None, num_tried: int) -> Difference | None:
    if versus is None or versus.p_holm is None:
        return versus
    return replace(versus, p_holm=min(1.0, versus.p_holm * num_tried))


def _is_beaten(rival: Group, metric: Metric) -> bool:
    """Return whether the leader is better than this group beyond chance."""
    found = rival.versus
    if found is None or found.mean is None or found.p_holm is None:
        return False
    return found.p_holm < SIGNIFICANCE and metric.is_better(0.0, found.mean)


@dataclass(frozen=True)
class _Case:
    """A leader beside the rival that is the hardest to beat."""

    leader: Group
    rival: Group
    versus: Difference  # the rival minus the leader
    num_comparisons: int
    noise: NoiseFloor
    metric: Metric
    repetitions: str

    @property
    def lead(self) -> Difference:
        """The difference of the leader from the rival, in units of the metric."""
        return self.versus.negated()

    @property
    def decided(self) -> str:
        p = "p < 0.001" if (self.versus.p_holm or 0.0) < 0.001 else f"p = {p_value(self.versus.p_holm)}"
        num = self.num_comparisons
        corrected = f", corrected for {num} comparisons" if num > 1 else ""
        return f"Decided: {self._names[0]} is better than {self._names[1]} by {self._size} ({p}{corrected})."

    @property
    def undecided(self) -> str:
        leader, rival = self._names
        start = f"Undecided: {leader} leads {rival} by {self._size}"
        mean, means = self.versus.mean, self._means
        if are_equal(means, means):
            return f"Undecided: {leader} and {rival} have the same mean of {self.metric.name}."
        if self.metric.is_better(means[1], means[0]):  # the leader is complete
            return f"Undecided: {rival} has a better mean than {leader}, but {self.rival.shortfall}."
        if self.leader.without_result:
            return f"{start}, but {self.leader.shortfall}."
        if mean is not None and self.metric.is_better(mean, 0.0):
            few = f"on the {self.versus.num_pairs} {self.repetitions} of both, {rival} is better by {self._size}"
            return f"Undecided: {leader} has the better mean, but {few}."
        if self.versus.p is None:
            return f"{start}, but {self._why_untested}."
        return f"{start}, {self._interval}.{self._advice}"

    @property
    def seeds(self) -> int | None:
        """The seeds that the observed lead needs; None if they are unknown or more than 10,000."""
        std, mean = self._std, self.versus.mean
        if std is None or not mean or self.versus.p is None:
            return None
        needed = seeds_needed(mean, std, is_paired=self.versus.num_pairs > 0)
        fewest = min(self.leader.estimate.num, self.rival.estimate.num)
        return None if needed is None else max(needed, fewest + 1)

    @property
    def _std(self) -> float | None:
        """The noise that decides the needed seeds: of the differences of pairs, or of the results without pairs.

        None if it is unknown, or if nobody can add repetitions, because they are folds.
        """
        if "fold" in self.repetitions:
            return None
        spread = self.noise.paired if self.versus.num_pairs > 0 else self.noise.unpaired
        return None if spread is None else spread.std or None

    @property
    def _names(self) -> tuple[str, str]:
        return short_name(self.leader), short_name(self.rival)

    @property
    def _size(self) -> str:
        mean = self.versus.mean
        return two_digits(abs(self._means[0] - self._means[1] if mean is None else mean))

    @property
    def _means(self) -> tuple[float, float]:
        leader, rival = self.leader.estimate.mean, self.rival.estimate.mean
        assert leader is not None
        assert rival is not None
        return leader, rival

    @property
    def _why_untested(self) -> str:
        nums = self.leader.estimate.num, self.rival.estimate.num
        if 1 in nums:
            few = "with one run each" if nums == (1, 1) else f"{self._names[nums.index(1)]} has one result"
            remedy = "" if "fold" in self.repetitions else ". Add seeds, such as seed=0,1,2"
            return f"{few}, so chance may explain it{remedy}"
        return f"by the same amount with all {self.repetitions}, so no noise is known to test it against"

    @property
    def _interval(self) -> str:
        ends = self.lead.interval(self.num_comparisons)
        assert ends is not None
        num = self.num_comparisons
        corrected = f", corrected for {num} comparisons," if num > 1 else ""
        return f"and the interval{corrected} ({' to '.join(map(two_digits, ends))}) contains 0"

    @property
    def _advice(self) -> str:
        kind = "paired seeds" if self.versus.num_pairs else "seeds of each"
        if self.seeds is not None:
            return f" About {self.seeds:,} {kind} would tell."
        return "" if self._std is None else f" Even {MAX_SEEDS:,} {kind} would hardly tell."


def short_name(group: Group) -> str:
    """Return the option alone if the groups differ in one config group: `adamw` of `optimizer=adamw`."""
    if len(group.labels) != 1:
        return group.name
    [(key, value)] = group.labels.items()
    return (
        group.name if "." in key or not value[:1].isalpha() or value in ("true", "false", "null") else value
    )


def _alone(group: Group, metric: Metric, repetitions: str) -> str:
    """Return the sentence about the only setting."""
    estimate, what = group.estimate, f"{metric.name} {number(group.estimate.mean)}"
    if group.num_runs == 1:
        return f"One run: {what}. There is nothing to compare it with."
    ends = "" if estimate.low is None else f" (95 % interval {interval(estimate.low, estimate.high)})"
    over = f"over {estimate.num} {repetitions}" if estimate.num > 1 else f"from 1 of {group.num_runs} runs"
    return f"One setting: {what} {over}{ends}. There is nothing to compare it with."


def _nothing(groups: Sequence[Group], metric: Metric) -> str:
    states = Counter[str]()
    for group in groups:
        states.update(group.states)
    counted = ", ".join(f"{num} {state}" for state, num in states.items())
    return f"No result: no run has finished with a finite {metric.name} ({counted})."
