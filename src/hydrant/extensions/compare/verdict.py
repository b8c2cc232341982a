"""The verdict: whether one setting is better than all others with results, in one sentence.

Of a sweep over several keys, also what each key changes, and which keys interact: each comparison is one of seeds, of
their means over the settings of the other keys that all of them have. Holm's correction counts all comparisons, of all
keys and pairs of keys, so a sweep without any effect decides something in at most 5 of 100 cases.
`tests/extensions/compare/test_factorial.py` counts them.

The setting with the best mean is tested against every other one with results by two-sided t-tests at 5 %, corrected by
Holm. It is decided if all of them show that it is better. Settings without results are named.
`tests/extensions/compare/test_verdict_rate.py` counts how often it is decided without any difference.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hydrant.config.metric_keys import differing_definitions, mode_by_name
from hydrant.extensions.compare import ranking, statistics
from hydrant.extensions.compare.groups import Group, Metric, Terms, are_balanced, group_runs, independent
from hydrant.extensions.compare.run import Run, config_groups
from hydrant.terminal.text import digits_of, interval, number, two_digits

_MIN_DEGREES = 2
"""Of freedom, with which the noise is known well enough to say how many seeds would show a lead: those of 3 pairs."""

_MAX_NAMES = 3
"""At most this many groups beside the leader and its rival are named."""

Status = Literal["decided", "undecided", "one_setting", "no_runs"]


@dataclass(frozen=True)
class Verdict:
    """What the results decide."""

    status: Status  # "no_runs": no run has a result; "one_setting": there is nothing to compare it with
    sentence: str
    winner: str | None = None  # None unless it is decided
    leader: str | None = None  # the setting with the best mean
    rival: str | None = None  # the group that the sentence compares the leader with
    lead: statistics.Difference | None = None  # the leader minus the rival; `p_holm` decides
    num_comparisons: int = 0
    seeds_needed: int | None = None  # for a power of about 80 %, if the true lead is the observed one

    def __str__(self) -> str:
        return self.sentence


def find_verdict(
    groups: Sequence[Group], noise: ranking.NoiseFloor, terms: Terms, beside: Sequence[float] = ()
) -> Verdict:
    """Return the verdict about groups. `beside`: the p-values of other tests for which these are corrected too."""
    leader = ranking.find_winner(groups, terms.metric)
    if leader is None:
        return Verdict("no_runs", _nothing(groups, terms.metric))
    if len(groups) == 1:
        return Verdict("one_setting", _alone(leader, terms), leader=leader.name)
    rivals = [group for group in groups if group is not leader and group.estimate.mean is not None]
    rivals = ranking.best_first(ranking.with_differences(rivals, leader, terms.factor, beside), terms.metric)
    if not rivals:
        sentence = f"Undecided: only {short_name(leader)} has results{_silent(groups)}."
        return Verdict("undecided", sentence, leader=leader.name)
    open_ones = [rival for rival in rivals if not is_beaten(rival, leader, terms.metric)]
    rival = (open_ones or rivals)[0]
    beaten = [group for group in rivals if group is not rival and group not in open_ones]
    num = (len(rivals) + len(beside)) * terms.num_tried
    case = _Case(leader, rival, beaten, num, noise, terms)
    sentence = case.undecided if open_ones else f"{case.decided}{_silent(groups)}."
    sentence += f" {statistics.looks_text(terms.num_looks)}" * (terms.num_looks > 1)
    common = leader.name, rival.name, case.lead, case.num_counted
    if open_ones:
        return Verdict("undecided", sentence, None, *common, case.seeds)
    return Verdict("decided", sentence, leader.name, *common)


def of_one_quantity(verdict: Verdict, runs: Sequence[Run], metric: Metric) -> Verdict:
    """Return a verdict, undecided if the loss in `metric` is another quantity in some runs: no lead then says anything.

    Args:
        runs: those that the metric compares, or those that it chooses from.
    """
    with_result = [run for run in runs if metric.has_result(run)]
    configs = [run.config for run in with_result]
    keys = differing_definitions(metric.name, configs)
    if not keys or verdict.status not in ("decided", "undecided"):
        return verdict
    split = metric.name.partition("/")[0] + "/"
    shared = set[str].intersection(*(set(run.series) for run in with_result))
    of_split = [name for name in sorted(shared) if name.startswith(split) and mode_by_name(name)]
    same = [name for name in of_split if not differing_definitions(name, configs)]
    quantity = f"{metric.name} is another quantity with each {', '.join(keys[:_MAX_NAMES])}"
    remedy = (
        f"Compare what all runs measure: --metric {same[0]}" if same else "No other metric is in all runs"
    )
    more = f" (or {', '.join(same[1:_MAX_NAMES])})" if same[1:] else ""
    return Verdict("undecided", f"Undecided: {quantity}, so it does not say which is better. {remedy}{more}.")


def is_beaten(rival: Group, leader: Group, metric: Metric) -> bool:
    """Return whether the leader has all its results and is better than this group beyond chance."""
    gap = rival.versus
    if leader.without_result or gap is None or gap.mean is None or gap.p_holm is None:
        return False
    return gap.p_holm < statistics.SIGNIFICANCE and metric.is_better(0.0, gap.mean)


def corrected_lead(
    rival: Group, leader: Group, metric: Metric, num_comparisons: int
) -> statistics.Difference:
    """Return the leader minus the rival in units of the metric, below 0 where less is better; sentences turn the sign.

    The rival has its difference from the leader. The interval is corrected for all comparisons.
    """
    assert rival.versus is not None
    return rival.versus.negated().at_once(num_comparisons, is_shown=is_beaten(rival, leader, metric))


class _Case:
    """A leader beside the rival that is the hardest to beat."""

    def __init__(
        self,
        leader: Group,
        rival: Group,
        beaten: Sequence[Group],
        num_comparisons: int,
        noise: ranking.NoiseFloor,
        terms: Terms,
    ) -> None:
        """`beaten`: the other groups than which the leader is better. `num_comparisons`: without looks."""
        versus, one, two = rival.versus, leader.estimate, rival.estimate
        assert versus is not None and one.mean is not None and two.mean is not None
        self.leader, self.rival, self.terms = leader, rival, terms
        self.versus = versus  # the rival minus the leader
        self.means, self.nums = (one.mean, two.mean), (one.num, two.num)
        # The comparisons for which the tests are corrected.
        self.num_counted = num_comparisons * terms.num_looks**2
        self.corrected = statistics.corrected_for(self.num_counted)
        self.lead = corrected_lead(rival, leader, terms.metric, self.num_counted)
        self.names = short_name(leader), short_name(rival)
        self.size = two_digits(abs(one.mean - two.mean if versus.mean is None else versus.mean))
        self.start = f"{self.names[0]} leads {self.names[1]} by {self.size} in {terms.metric.name}"
        # The results behind the lead: `5 paired seeds`, or `4 and 3 unpaired seeds`.
        unpaired = f"{one.num} and {two.num} unpaired {terms.repetitions}"
        self.over = self._pairs("paired ") if versus.num_pairs else unpaired
        names = [short_name(group) for group in beaten]
        self.beaten = f"{len(names)} others" if len(names) > _MAX_NAMES else ", ".join(names)
        self.obstacle, self.std, self.seeds = self._obstacle(), self._std(noise), None
        if self.std and versus.mean and not self.obstacle:
            self.seeds = statistics.seeds_needed(versus.mean, self.std, num_comparisons)

    @property
    def decided(self) -> str:
        p = statistics.p_value(self.versus.p_holm)
        evidence = f"{self.over}, p {'< 0.001' if p == '<0.001' else f'= {p}'}{self.corrected}"
        also = f"; also better than {self.beaten}" if self.beaten else ""
        lead = f"{self.names[0]} is better than {self.names[1]} by {self.size} in {self.terms.metric.name}"
        return f"Decided: {lead} ({evidence}){also}"

    @property
    def undecided(self) -> str:
        if self.obstacle:
            return f"Undecided: {self.obstacle}."
        # Above 0 where the leader is better.
        lead = self.lead if self.terms.metric.mode == "max" else self.lead.negated()
        assert lead.low is not None and lead.high is not None
        span = f"{two_digits(lead.low)} to {two_digits(lead.high)}"
        ends = f"the lead{self.corrected and f'{self.corrected},'} is {span}"
        start = f"Undecided: {self.start} over {self.over}"
        also = f" {self.names[0]} is better than {self.beaten}." if self.beaten else ""
        return f"{start}, but either may be better: the 95 % interval of {ends}.{self._advice()}{also}"

    def _obstacle(self) -> str:
        """Return the reason beside the size of the lead and its noise, in words; "" if there is none."""
        (leader, rival), means, versus, metric = self.names, self.means, self.versus, self.terms.metric
        equal = "" if means[0] == means[1] else ", but for the rounding of float32 numbers"
        is_behind = versus.mean is not None and metric.is_better(versus.mean, 0.0)
        on_pairs = f"on the {self._pairs('common ')}, {rival} is better by {self.size}"
        reasons = (
            (statistics.are_equal(means, means), f"{leader} and {rival} have the same mean of {metric.name}{equal}"),
            # The leader is complete.
            (metric.is_better(means[1], means[0]),
             f"{rival} has a better mean than {leader}, but {_shortfall(self.rival)}"),
            (bool(self.leader.without_result), f"{self.start}, but {_shortfall(self.leader)}"),
            (is_behind, f"{leader} has the better mean, but {on_pairs}"),
            (versus.p is None, f"{self.start}, but {self._why_untested()}"),
        )  # fmt: skip
        return next((text for applies, text in reasons if applies), "")

    def _why_untested(self) -> str:
        name = self.terms.repetitions
        if 1 in self.nums:
            one = f"{self.names[self.nums.index(1)]} has one result"
            few = f"there is one {name.removesuffix('s')} of each" if self.nums == (1, 1) else one
            remedy = "" if self.terms.has_folds or self.terms.is_study else ". Add seeds, such as seed=0,1,2"
            return f"{few}, so chance may explain it{remedy}"
        if self.versus.num_pairs == 0:
            return "all results of each are equal, so the noise is unknown"
        return f"by the same amount on each of the {self._pairs('common ')}, so the noise is unknown"

    def _pairs(self, kind: str) -> str:
        """Return the number of pairs in words: `2 paired seeds`."""
        num, word = self.versus.num_pairs, self.terms.repetitions
        if " and " in word:  # such as seeds and folds
            word = "repetitions"
        return f"{num} {kind}{word.removesuffix('s') if num == 1 else word}"

    def _std(self, noise: ranking.NoiseFloor) -> float | None:
        """Return the noise that decides the needed seeds: of the differences of two results, with or without pairs.

        None if it is unknown, or if the results of a group are folds.
        """
        versus = self.versus
        spread = noise.paired if versus.num_pairs else noise.unpaired
        std, degrees = (None, 0) if spread is None else (spread.std, spread.degrees)
        # The two may have more seeds in common than all groups have.
        if versus.num_pairs and versus.error and versus.degrees and versus.degrees > degrees:
            std, degrees = versus.error * versus.num_pairs**0.5, versus.degrees
        if self.terms.has_folds or not std or degrees < _MIN_DEGREES:
            return None
        return std if versus.num_pairs else 2**0.5 * std

    def _advice(self) -> str:
        if self.terms.is_study:
            return ""
        if self.seeds is not None:
            seeds, how = two_digits(self.seeds), "a sweep of these alone, or hydrant study"
            return f" If this lead is real, about {seeds} fresh seeds of each would show it: {how}."
        if self.std is not None:
            return f" Even {statistics.MAX_SEEDS:,} seeds of each would hardly show which."
        few = " Of so few seeds, the noise is hardly known; more need a sweep of their own."
        return few * (not self.terms.has_folds)


def short_name(group: Group) -> str:
    """Return the name of a group with options alone: `adamw optimizer.lr=0.1` of `optimizer=adamw optimizer.lr=0.1`."""
    options = config_groups(group.runs)
    labels = group.labels.items()
    words = [value if key in options and value != "null" else f"{key}={value}" for key, value in labels]
    return " ".join(words) or group.name


def _shortfall(group: Group) -> str:
    return group.shortfall_of(f"the {group.num_runs} runs of {short_name(group)}")


def _silent(groups: Sequence[Group]) -> str:
    """Return which groups have no result yet, for the end of a sentence; "" if all have one."""
    silent = [group for group in groups if group.estimate.mean is None and group.without_result]
    if len(silent) > _MAX_NAMES:
        return f"; {len(silent)} other groups have no result"
    return "".join(f"; {short_name(group)} has no result ({group.lacking})" for group in silent)


def _alone(group: Group, terms: Terms) -> str:
    """Return the sentence about the only setting."""
    estimate = group.estimate
    digits = digits_of([estimate.low, estimate.high])
    mean = f"{terms.metric.name} {number(estimate.mean, digits)}"
    if group.num_runs == 1:
        return f"One run: {mean}. There is nothing to compare it with."
    ends = "" if estimate.low is None else f" (95 % interval {interval(estimate.low, estimate.high, digits)})"
    over = f"over {estimate.num} {terms.repetitions}"
    if estimate.num == 1:
        of_all = f"from 1 of {group.num_seeds} {terms.repetitions}"
        over = "from one seed" if group.num_seeds == 1 else of_all
    return f"One setting: {mean} {over}{ends}. There is nothing to compare it with."


def _nothing(groups: Sequence[Group], metric: Metric) -> str:
    states = Counter[str]()
    for group in groups:
        states.update(group.states)
    if not states:
        return "No result: no run is in a group; the warnings say why."
    counted = ", ".join(f"{num} {state}" for state, num in states.items())
    return f"No result: no run has finished with a finite {metric.name} ({counted})."


@dataclass(frozen=True)
class Effect:
    """What the best value of a key gains over another one, in units of the metric: the best minus the other."""

    key: str
    best: str
    other: str
    lead: statistics.Difference  # with the interval that is corrected for all comparisons
    is_decided: bool


@dataclass(frozen=True)
class Interaction:
    """How much the lead of a value over another one changes with a value of another key."""

    keys: tuple[str, str]
    lead_of: tuple[str, str]  # the first value over the second one, of the first key
    change_to: tuple[str, str]  # the first value instead of the second one, of the second key
    # The one with the smallest p, which is corrected for all changes of these keys.
    change: statistics.Difference
    num_changes: int
    is_decided: bool = False


@dataclass(frozen=True)
class Factorial:
    """The effects of all keys and their interactions, and the verdict about the key with the clearest effect."""

    effects: Sequence[Effect]
    interactions: Sequence[Interaction]
    untested: Sequence[tuple[str, str]]  # keys whose interaction has no test
    decided: Sequence[str]  # keys whose best value is better than each other one
    num_comparisons: int
    verdict: Verdict
    # Settings and seeds with results that an effect does not count, and in which group.
    left_out: Sequence[str]


def find_factorial(
    runs: Sequence[Run], by: Sequence[str], seed_keys: Sequence[str], terms: Terms
) -> Factorial | None:
    """Return what each of several keys changes; None unless two values of each share settings of all the others.

    Args:
        by: the keys in which the settings differ.
        seed_keys: the keys that repeat them.
    """
    keys, metric = [*by, *seed_keys], terms.metric
    groups = {key: group_runs(runs, [key], keys, metric) for key in by}
    if len(by) < 2 or not all(_are_crossed(groups[key], key, by) for key in by):
        return None
    key_pairs = itertools.combinations(by, 2)
    pairs = {pair: _interaction(group_runs(runs, pair, keys, metric), metric) for pair in key_pairs}
    ranked = {key: _best_first(groups[key], metric) for key in by}
    ps = {
        key: _known(ranking.difference(rival, first).p for rival in rest)
        for key, (first, *rest) in ranked.items()
    }
    of_pairs = _known(clearest and clearest.change.p for clearest in pairs.values())
    num = terms.factor * max(sum(map(len, ps.values())) + len(of_pairs), 1)
    effects, verdicts = list[Effect](), dict[str, Verdict]()
    for key, (leader, *rivals) in ranked.items():
        beside = [*(p for other in by if other != key for p in ps[other]), *of_pairs]
        noise = ranking.measured_noise(groups[key], ranked[key][:2])
        verdicts[key] = find_verdict(groups[key], noise, terms, beside)
        for rival in ranking.with_differences(rivals, leader, terms.factor, beside):
            of_pair = leader.labels[key], rival.labels[key], corrected_lead(rival, leader, metric, num)
            effects.append(Effect(key, *of_pair, is_beaten(rival, leader, metric)))
    corrected = iter(statistics.holm([*of_pairs, *itertools.chain(*ps.values())]))
    tested = {pair: one for pair, one in pairs.items() if one is not None and one.change.p is not None}
    interactions = [_judged(one, min(1.0, terms.factor * next(corrected)), num) for one in tested.values()]
    untested = [pair for pair in pairs if pair not in tested]
    decided = [key for key in by if verdicts[key].status == "decided"]
    left_out = [f"{name} in {group.name}" for key in by for group in groups[key] for name in group.left_out]
    return Factorial(effects, interactions, untested, decided, num, _clearest(verdicts, decided), left_out)


def _known(ps: Iterable[float | None]) -> list[float]:
    return [p for p in ps if p is not None]


def _best_first(groups: Sequence[Group], metric: Metric) -> list[Group]:
    """Return the groups with a result: the winner, then the others by their means."""
    winner = ranking.find_winner(groups, metric)
    with_result = ranking.best_first([group for group in groups if group.results], metric)
    return sorted(with_result, key=lambda group: group is not winner)


def _are_crossed(groups: Sequence[Group], key: str, by: Sequence[str]) -> bool:
    """Return whether two values of a key are compared at the same settings of all other keys, which vary too."""
    with_result = [group for group in groups if group.results]
    varied = [other for other in by if other != key]
    return len(with_result) > 1 and are_balanced(groups) and [*groups[0].averaged_over] == varied


def _clearest(verdicts: Mapping[str, Verdict], decided: Sequence[str]) -> Verdict:
    """Return the verdict about the key with the smallest p, and which others are decided."""

    def p_of(key: str) -> float:
        lead = verdicts[key].lead
        return 1.0 if lead is None or lead.p_holm is None else lead.p_holm

    first = min(decided or verdicts, key=p_of)
    also = [key for key in decided if key != first]
    open_ones = [key for key in verdicts if key not in decided]
    parts = [f" Decided too: {', '.join(also)}."] * bool(also)
    parts += [f" Undecided: {', '.join(open_ones)}."] * bool(decided and open_ones)
    return replace(verdicts[first], sentence=verdicts[first].sentence + "".join(parts))


def _interaction(groups: Sequence[Group], metric: Metric) -> Interaction | None:
    """Return the clearest change of a lead between values of two keys, by whose pairs of values the runs are grouped.

    Each lead over a base value of the first key is compared, seed by seed, with that at a base value of the second key:
    the pair of values with the most changes. p is multiplied by the number of these changes (Bonferroni), which holds
    for any number of seeds.
    """
    cells = {tuple(group.labels.values()): group for group in groups if group.results}
    one, two = groups[0].labels
    base, base_two = max(cells, key=lambda c: sum({(c[0], b), (a, c[1])} <= {*cells} for a, b in cells))
    changes: list[Interaction] = []
    for (value, value_two), group in cells.items():
        corners = [cells.get(place) for place in ((base, base_two), (value, base_two), (base, value_two))]
        if value == base or value_two == base_two or None in corners or not are_balanced(groups):
            continue
        rest = [corner.results for corner in corners if corner is not None]
        seeds = [seed for seed in group.results if all(seed in results for results in rest)]
        plus = independent({s: group.results[s] + rest[0][s] for s in seeds})
        minus = independent({s: rest[1][s] + rest[2][s] for s in seeds})
        change, lead_of = statistics.paired(plus, minus, ranking.overlap_of(group)), (value, base)
        if change.mean is not None and metric.is_better(0.0, change.mean):  # say which lead grows
            change, lead_of = change.negated(), (base, value)
        changes.append(Interaction((one, two), lead_of, (value_two, base_two), change, 1))
    if not changes:
        return None
    num = len(changes)
    clearest = min(changes, key=lambda one: 2.0 if one.change.p is None else one.change.p)
    p = None if clearest.change.p is None else min(1.0, num * clearest.change.p)
    return replace(clearest, change=replace(clearest.change, p=p), num_changes=num)


def _judged(interaction: Interaction, p_holm: float, num_counted: int) -> Interaction:
    """Return an interaction with its corrected p-value and interval."""
    is_decided = p_holm < statistics.SIGNIFICANCE
    num = num_counted * interaction.num_changes
    change = interaction.change.at_once(num, is_shown=is_decided)
    return replace(interaction, change=replace(change, p_holm=p_holm), is_decided=is_decided)
