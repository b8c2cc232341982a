"""When a study is decided, and what its verdict says.

After each seed, every pair of contenders that are left is tested at the level `alpha / (contenders - 1)`. A contender
is beaten, and gets no more seeds, when another one is better beyond chance. Why the answer is wrong with a probability
of at most alpha, over all looks and contenders: let B have the best true mean. A winner other than B needs that one of
the `contenders - 1` others wrongly beats B. A winner B whose equal C lost needs that one of as many others wrongly
beats C. "No difference" is wrong only if B was wrongly beaten, or a test of B leaves out its true lead over one of the
others. To rule out B needs that one of as many others wrongly beats B. Each of these `2 * (contenders - 1)` errors is
one direction of a two-sided test, with half of its level. The order of two contenders that are both worse than B is in
none of them, so no sentence claims it: a beaten contender is ruled out. A contender that fails is in no answer, so what
it alone has beaten leaves the study undecided.

The test of a pair is the mixture sequential t-test. With effect sizes `mean / std` that are normal with variance
`EFFECT_VARIANCE` under the alternative and Haar's prior for the standard deviation, the likelihood ratio of n
differences depends only on their t statistic (Gonen et al., "The Bayesian two-sample t test", 2005). Under the null it
is a nonnegative martingale with mean 1 for any standard deviation (Perez-Ortiz et al., "E-statistics, group invariance
and anytime-valid testing", 2024; Wang & Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with
unknown variance", 2025), so by Ville's inequality it ever reaches 1 / alpha with a probability of at most alpha.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import msgspec

from hydrant.config.metric_keys import UNBOUNDED
from hydrant.extensions.study.records import Interval, Reason, Verdict
from hydrant.terminal.text import two_digits

EFFECT_VARIANCE = 2.0
"""The test is valid for any value, and about as fast between 0.5 and 10. Larger values favour large effects with few
pairs."""

_ROUNDING = 1e-6
"""The relative distance up to which differences of float32 metrics count as equal."""

MAX_PAIRS = 1_000
"""The most pairs of which it is computed how much they find."""

_NUM_SIMULATED = 2_000


def estimate(
    differences: Sequence[float],
    alpha: float,
    sizes: Sequence[float] = (),
    ends: tuple[float, float] = UNBOUNDED,
) -> Interval:
    """Return the estimate after the last of one or more pairs.

    With a probability of at least `1 - alpha`, the intervals after every pair hold the true mean, if the differences
    are independent and normal. So an interval may decide when to stop.

    Args:
        differences: one for each pair, in their order.
        alpha: the probability of an error, such as 0.05.
        sizes: the larger absolute metric of each pair; differences that are equal up to its rounding bound nothing.
        ends: the smallest and the largest mean that is possible; the interval is cut there.

    >>> found = estimate([0.1, 0.12, 0.09, 0.11, 0.1], 0.05)
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (0.104, 0.074, 0.134)
    """
    num = len(differences)
    mean, std = math.fsum(differences) / num, spread(differences)
    rounding = _ROUNDING * max(sizes, default=0.0)
    half = math.inf if max(differences) - min(differences) <= rounding else _half_width(std, num, alpha)
    bounds = (None, None) if math.isinf(half) else (max(mean - half, ends[0]), min(mean + half, ends[1]))
    return Interval(num, mean, *bounds)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, with n - 1 in the denominator; 0 for one value."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))


def min_pairs(alpha: float) -> int:
    """Return the smallest number of pairs that can decide, however large the effect.

    >>> min_pairs(0.05), min_pairs(0.05 / 11)
    (4, 6)
    """
    return next(num for num in range(2, MAX_PAIRS) if not math.isinf(_half_width(1.0, num, alpha)))


@cache
def pairs_needed(effect: float, alpha: float, power: float) -> int | None:
    """Return with how many pairs the test finds a true effect `mean / std` with this probability; None: over 1,000.

    Of 2,000 simulated sequences, whose random numbers are always the same.
    """
    return _needed(effect, alpha, power, MAX_PAIRS)


@cache
def detectable_effect(num_pairs: int, alpha: float, power: float) -> float | None:
    """Return the smallest effect that so many pairs find with this probability; None if they find none.

    >>> round(detectable_effect(20, 0.05, 0.8), 1)
    0.9
    """
    low, high = 0.01, 100.0
    if _needed(high, alpha, power, num_pairs) is None:
        return None
    for _ in range(14):
        middle = math.sqrt(low * high)
        is_found = _needed(middle, alpha, power, num_pairs) is not None
        low, high = (low, middle) if is_found else (middle, high)
    return high


def _needed(effect: float, alpha: float, power: float, max_pairs: int) -> int | None:
    """Return after how many pairs this share of simulated sequences shows that the effect is above 0."""
    import numpy as np

    num = np.arange(1, max_pairs + 1)
    gaps = _noise()[:, :max_pairs] + effect
    means = np.cumsum(gaps, axis=1) / num
    squares = np.maximum(np.cumsum(gaps**2, axis=1) - num * means**2, 1e-300)
    limits = np.array([_half_width(1.0, int(n), alpha) for n in num])  # in standard deviations
    stds = np.sqrt(squares / np.maximum(num - 1, 1))
    is_clear = means > np.where(np.isinf(limits), np.inf, limits * stds)
    is_known = np.logical_or.accumulate(is_clear, axis=1).mean(axis=0) >= power
    return int(is_known.argmax()) + 1 if is_known.any() else None


@cache
def _noise() -> Any:
    import numpy as np

    return np.random.default_rng(0).normal(size=(_NUM_SIMULATED, MAX_PAIRS))


def _half_width(std: float, num: int, alpha: float) -> float:
    """Return the largest distance from the mean at which the likelihood ratio stays below 1 / alpha."""
    growth = 1 + num * EFFECT_VARIANCE
    if num == 1 or std == 0.0:
        return math.inf
    limit = math.exp(2 / num * (math.log(growth) / 2 - math.log(alpha)))
    if limit >= growth:
        return math.inf
    return std * math.sqrt((num - 1) * (limit - 1) / (1 - limit / growth) / num)


Results = Mapping[str, Sequence[float | None]]
"""The results of each contender with the fresh seeds, in their order; None: the run failed, or ended without one."""


@dataclass(frozen=True)
class Rule:
    """The rule that decides a study."""

    metric: str
    mode: str  # "max" or "min"
    alpha: float
    power: float
    min_difference: float | None  # a smaller difference does not matter; None: every difference does
    num_contenders: int

    @property
    def pair_alpha(self) -> float:
        """The level of the test of one pair."""
        return self.alpha / max(self.num_contenders - 1, 1)

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.mode == "max" else value < other


@dataclass(frozen=True)
class Comparison:
    """Two contenders: the first minus the second one, up to the last seed that compared them."""

    names: tuple[str, str]
    estimate: Interval
    std: float  # of the differences

    @property
    def is_clear(self) -> bool:
        low, high = self.estimate.low, self.estimate.high
        return low is not None and high is not None and not low <= 0 <= high

    def is_below(self, limit: float) -> bool:
        """Whether the true difference is certainly smaller than this, in both directions."""
        low, high = self.estimate.low, self.estimate.high
        return low is not None and high is not None and max(-low, high) < limit

    def seen_from(self, name: str) -> Comparison:
        """Return the comparison with this one of its contenders in front."""
        if self.names[0] == name:
            return self
        e = self.estimate
        low, high = (None if end is None else -end for end in (e.high, e.low))
        return Comparison((self.names[1], self.names[0]), Interval(e.num_pairs, -e.mean, low, high), self.std)


@dataclass(frozen=True)
class Standing:
    """What the results say so far."""

    active: Sequence[str]  # neither beaten nor failed
    beaten: Mapping[str, tuple[str, int]]  # by whom, and after how many seeds
    failed: Mapping[str, int]  # with which seed, from 1 on
    comparisons: Sequence[Comparison]
    num_seeds: int  # that all active contenders have
    ended_by: Reason | None  # None: more seeds may tell

    def victories(self) -> list[Comparison]:
        """Return what beat each beaten contender: the comparison with the better one in front."""
        by = {frozenset((name, by)): by for name, (by, _) in self.beaten.items()}
        return [c.seen_from(by[pair]) for c in self.comparisons if (pair := frozenset(c.names)) in by]


def judge(results: Results, rule: Rule) -> Standing:
    """Return what results say, looking at them after each seed in its order. Later results take nothing back.

    >>> rule = Rule("val/loss", "min", 0.05, 0.8, None, 2)
    >>> standing = judge({"a": [0.30, 0.31, 0.29, 0.30], "b": [0.40, 0.43, 0.38, 0.41]}, rule)
    >>> standing.active, standing.beaten, standing.ended_by
    (['a'], {'b': ('a', 4)}, 'decision')
    """
    active, num = list(results), 0
    ended: Reason | None = "failures" if len(active) == 1 else None
    beaten, failed = dict[str, tuple[str, int]](), dict[str, int]()
    known = dict[tuple[str, str], Comparison]()
    while ended is None and active and all(len(results[name]) > num for name in active):
        num += 1
        for name in [name for name in active if results[name][num - 1] is None]:
            failed[name] = num
            active.remove(name)
        pairs = itertools.combinations(active, 2)
        current = [_compare(p, tuple(zip(*(results[n][:num] for n in p), strict=True)), rule) for p in pairs]
        known |= {pair.names: pair for pair in current}
        for pair in current:
            if pair.is_clear:
                better, worse = pair.names if rule.is_better(pair.estimate.mean, 0.0) else pair.names[::-1]
                beaten.setdefault(worse, (better, num))
        active = [name for name in active if name not in beaten]
        ended = _end(active, beaten, [pair for pair in current if {*pair.names} <= {*active}], rule)
    standing = Standing(active, beaten, failed, list(known.values()), num, ended)
    return replace(standing, ended_by="failures") if ended and _not_settled(standing) else standing


@lru_cache(1 << 12)  # each seed that is read asks for those before it
def _compare(names: tuple[str, str], seen: Sequence[tuple[float | None, ...]], rule: Rule) -> Comparison:
    values = [(a, b) for a, b in seen if a is not None and b is not None]
    gaps, sizes = [a - b for a, b in values], [max(abs(a), abs(b)) for a, b in values]
    return Comparison(names, estimate(gaps, rule.pair_alpha, sizes), spread(gaps))


def _end(
    active: Sequence[str], beaten: Mapping[str, object], current: Sequence[Comparison], rule: Rule
) -> Reason | None:
    """Return why no more seeds are needed; None if they are."""
    if len(active) <= 1:
        return "decision" if active and beaten else "failures"
    limit = rule.min_difference
    return "no_difference" if limit is not None and all(c.is_below(limit) for c in current) else None


def _not_settled(standing: Standing) -> list[str]:
    """Return the beaten contenders of which nothing shows that one that is left is better: their victors failed."""
    clear = [{*c.names} for c in standing.comparisons if c.is_clear]
    settled, left = set(standing.active), dict(standing.beaten)
    while newly := [
        n for n, (by, _) in left.items() if by in settled or any({n, a} in clear for a in standing.active)
    ]:
        settled.update(newly)
        left = {name: by for name, by in left.items() if name not in settled}
    return list(left)


def question(contenders: Sequence[str], rule: Rule) -> str:
    """Return what a study of these contenders asks."""
    names, better = ", ".join(contenders[:-1]), "highest" if rule.mode == "max" else "lowest"
    return f"Which of {names} and {contenders[-1]} has the {better} {rule.metric}?"


def why_it_ended(reason: Reason | None, seeds: int, budget: str) -> tuple[Reason, str] | None:
    """Return why a study ended with that reason in words; None if its results say it, or it has not ended."""
    words: dict[Reason | None, str] = {
        "seeds": f"all {seeds} seeds are used",
        "budget": f"no further round fits into the budget of {budget}",
        "failures": "no run of the tuning has a result",
    }
    return None if reason is None or reason not in words else (reason, words[reason])


def failure(outcomes: Sequence[float | str], num: int) -> str:
    """Return what happened to a contender in the test, such as `diverged with fresh seed 2`.

    Args:
        outcomes: of all of its fresh seeds that have ended; of those without a result, why.
        num: the first one without a result, from 1 on.
    """
    reason = outcomes[num - 1]
    reason = f"was {reason}" if reason in ("stopped", "refused") else reason
    is_each = len(outcomes) > 1 and all(isinstance(outcome, str) for outcome in outcomes)
    return f"{reason} with {f'each of its {len(outcomes)} fresh seeds' if is_each else f'fresh seed {num}'}"


def find_verdict(
    standing: Standing, results: Results, rule: Rule, without: Mapping[str, str], why_ended: tuple[Reason, str] | None,
    why_failed: Mapping[str, str] | None = None,
) -> Verdict:  # fmt: skip
    """Return the verdict.

    Args:
        standing: what `judge` returns for the results.
        without: why contenders that are not in the results have none.
        why_ended: "budget" or "seeds", and what ended, in words; None: the study goes on, or the standing ended it.
        why_failed: what happened to contenders in the test, where that is known better than `failed with fresh seed 2`.
    """
    ended = standing.ended_by or (why_ended[0] if why_ended else None)
    leader, rival = _leader_and_rival(standing, results, rule)
    lacking = {name: f"has no result ({reason})" for name, reason in without.items()}
    lacking |= {name: f"failed with fresh seed {n}" for name, n in standing.failed.items()}
    silent = "".join(f"; {name} {reason}" for name, reason in (lacking | {**(why_failed or {})}).items())
    why = "" if why_ended is None else f"; {why_ended[1]}"
    lead = (None, None) if rival is None else (rival.names[1], rival.estimate)

    def verdict(text: str, after: str = "", **fields: Any) -> Verdict:
        undecided = Verdict(ended, None, "undecided", f"{text}{silent}.{after}", None, leader, *lead)
        return msgspec.structs.replace(undecided, **fields)

    if leader is None or rival is None:
        return verdict(f"Undecided: {_nothing(leader, standing, rule, ended, why)}")
    if lucky := _better_but_failed(leader, standing, results, rule):
        better = f"{lucky} had a better mean of {rule.metric} than {leader}"
        return verdict(f"Undecided: {better} before it failed")
    if standing.ended_by and (obstacle := _obstacle(standing, results)):
        return verdict(f"Undecided: {_shown_so_far(rival, standing, rule)}{obstacle}", ended_by="failures")
    if ended == "decision":
        among = ", among those that trained" * bool(without)
        return verdict(f"Decided{among}: {_better(rival, standing, rule)}", status="decided", winner=leader)
    beaten = {name: by for name, (by, _) in standing.beaten.items() if by not in standing.failed}
    out = "".join(f" {name} is ruled out (beaten by {by})." for name, by in beaten.items())
    if ended == "no_difference":
        return verdict(f"No difference: {_no_difference(standing, rule)}", out, status="no_difference")
    seeds = _seeds_needed(rival, rule) if ended else None
    advice = _advice(seeds, rival) if ended else ""
    return verdict(f"{_undecided(rival, rule)}{why}", f"{advice}{out}", seeds_needed=seeds)


def _nothing(leader: str | None, standing: Standing, rule: Rule, ended: Reason | None, why: str) -> str:
    """Return why no two contenders can be compared."""
    if leader is not None:
        return f"only {leader} has results of {rule.metric}, so there is nothing to compare it with"
    if why:
        few = f"; a decision needs {min_pairs(rule.pair_alpha)} fresh seeds of each" * (ended == "budget")
        return f"no result{why}{few}"
    return "no contender has results with fresh seeds" if standing.failed else "no result yet"


def _shown_so_far(rival: Comparison, standing: Standing, rule: Rule) -> str:
    """Return what the results show although failed contenders leave the question open; "" if nothing."""
    if len(standing.active) > 1:
        return f"{_no_difference(standing, rule)}, but "
    return f"{_better(rival, standing, rule)}, but " if rival.is_clear else ""


def _leader_and_rival(
    standing: Standing, results: Results, rule: Rule
) -> tuple[str | None, Comparison | None]:
    """Return the best contender, and its comparison with its closest rival. Each is None if there is none."""
    means = {name: _mean(results[name], standing.num_seeds) for name in results}
    leader = _best({name: means[name] for name in standing.active}, rule)
    if leader is None and len(standing.active) == 1:
        leader = standing.active[0]
    if leader is None:
        return None, None
    rivals = {*standing.active} - {leader} or standing.beaten.keys()
    leads = [c.seen_from(leader) for c in standing.comparisons if leader in c.names and rivals & {*c.names}]
    if len(standing.active) == 1:  # of those that the leader has beaten, the last ones
        latest = max(((c.is_clear, c.estimate.num_pairs) for c in leads), default=None)
        leads = [c for c in leads if (c.is_clear, c.estimate.num_pairs) == latest]
    name = _best({c.names[1]: means[c.names[1]] for c in leads}, rule)
    return leader, next((c for c in leads if c.names[1] == name), None)


def _better(lead: Comparison, standing: Standing, rule: Rule) -> str:
    winner, rival = lead.names
    size = two_digits(abs(lead.estimate.mean))
    small = rule.min_difference is not None and lead.is_below(rule.min_difference)
    note = f", less than the {rule.min_difference:g} that matters" if small else ""
    seeds = f"{standing.num_seeds} fresh seeds, {_level(rule)} interval {_interval(lead, rule)}"
    return f"{winner} is better than {rival} by {size} in {rule.metric}{note} ({seeds})"


def _no_difference(standing: Standing, rule: Rule) -> str:
    *names, last = standing.active
    return (
        f"{', '.join(names)} and {last} differ by less than {rule.min_difference:g} in {rule.metric} "
        f"({standing.num_seeds} fresh seeds)"
    )


def _undecided(lead: Comparison, rule: Rule) -> str:
    leader, rival = lead.names
    if lead.estimate.mean == 0.0:
        return f"Undecided: {leader} and {rival} have the same mean of {rule.metric}"
    start = f"Undecided: {leader} leads {rival} by {two_digits(abs(lead.estimate.mean))} in {rule.metric}"
    num = lead.estimate.num_pairs
    if lead.std == 0.0 and num > 1:
        return f"{start} with each of {num} seeds alike, so no noise is known to test it against"
    if lead.estimate.low is None:
        return f"{start}, but {num} fresh seed{'s' * (num != 1)} can decide nothing"
    interval = f"the {_level(rule)} interval of the lead is {_interval(lead, rule)}"
    return f"{start}, but either may be better: {interval}"


def _level(rule: Rule) -> str:
    """Return the level of the interval of a pair, such as `97.5 %` with three contenders."""
    return f"{100 * (1 - rule.pair_alpha):.4g} %"


def _advice(seeds: int | None, lead: Comparison) -> str:
    if seeds is not None:
        return (
            f" If this lead is real, about {two_digits(seeds)} seeds of each, these included, would show it."
        )
    return f" Even {MAX_PAIRS:,} seeds of each would hardly show which." if lead.std > 0.0 else ""


def _seeds_needed(lead: Comparison, rule: Rule) -> int | None:
    if lead.std == 0.0 or lead.estimate.mean == 0.0:
        return None
    needed = pairs_needed(abs(lead.estimate.mean) / lead.std, rule.pair_alpha, rule.power)
    return None if needed is None else max(needed, lead.estimate.num_pairs + 1)


def _obstacle(standing: Standing, results: Results) -> str:
    """Return why failed contenders leave the question open although the test has ended; "" if they do not."""
    them = "it" if len(standing.active) == 1 else "them"
    unknown = [name for name, num in standing.failed.items() if _mean(results[name], num - 1) is None]
    texts = [f"{name} failed before anything compared it with {them}" for name in unknown]
    for name in _not_settled(standing):
        by = standing.beaten[name][0]
        texts.append(f"only {by}, which failed later, has beaten {name}")
    return " and ".join(texts)


def _better_but_failed(leader: str, standing: Standing, results: Results, rule: Rule) -> str:
    """Return a contender that was better than the leader with the seeds before it failed; "" if there is none."""
    for name, num in standing.failed.items():
        mean, of_leader = _mean(results[name], num - 1), _mean(results[leader], num - 1)
        if mean is not None and of_leader is not None and rule.is_better(mean, of_leader):
            return name
    return ""


def _best(means: Mapping[str, float | None], rule: Rule) -> str | None:
    known = {name: mean for name, mean in means.items() if mean is not None}
    pick = max if rule.mode == "max" else min
    return pick(known, key=lambda name: known[name]) if known else None


def _mean(values: Sequence[float | None], num: int) -> float | None:
    known = [value for value in values[:num] if value is not None]
    return math.fsum(known) / len(known) if known else None


def _interval(lead: Comparison, rule: Rule) -> str:
    """Return the interval of the lead of the first one: above 0 where it is better, also if less is better."""
    if rule.mode == "min":
        lead = lead.seen_from(lead.names[1])
    low, high = lead.estimate.low, lead.estimate.high
    return "not bounded" if low is None or high is None else f"{two_digits(low)} to {two_digits(high)}"
