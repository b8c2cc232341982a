"""The verdict: whether one setting is better than all others with results, in one sentence.

Of a sweep over several keys, what each key changes, and which keys interact: each comparison is one of seeds, of
their means over the settings of the other keys that all of them have. Holm's correction counts all comparisons, of all
keys and pairs of keys, so a sweep without any effect decides something in at most 5 of 100 cases. The sentence names no
best value of a key where another one is better with some value of a key that it interacts with.
`tests/extensions/compare/test_factorial.py` counts both.

The setting with the best mean is tested against every other one with results by two-sided t-tests at 5 %, corrected by
Holm. It is decided if all of them show that it is better. Settings without results are named.
`tests/extensions/compare/test_verdict_rate.py` counts how often it is decided without any difference.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from hydrant.config.groups import REPETITIONS
from hydrant.config.metric_keys import differing_definitions, mode_by_name
from hydrant.extensions.compare import ranking, statistics
from hydrant.extensions.compare.groups import Group, Metric, Terms, are_balanced, group_runs, independent
from hydrant.extensions.compare.run import Run, config_groups
from hydrant.records import Answer
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


def find_verdict(groups: Sequence[Group], noise: ranking.NoiseFloor, terms: Terms) -> Verdict:
    """Return the verdict about groups."""
    leader = ranking.find_winner(groups, terms.metric)
    if leader is None:
        return Verdict("no_runs", _nothing(groups, terms.metric))
    if len(groups) == 1:
        return Verdict("one_setting", _alone(leader, terms), leader=leader.name)
    rivals = [group for group in groups if group is not leader and group.estimate.mean is not None]
    rivals = ranking.best_first(ranking.with_differences(rivals, leader, terms.factor), terms.metric)
    if not rivals:
        sentence = f"Undecided: only {short_name(leader)} has results{_silent(groups)}."
        return Verdict("undecided", sentence, leader=leader.name)
    return _Case(leader, rivals, len(rivals), noise, terms).verdict(groups)


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
    remedy = f"Compare what all runs measure: --metric {same[0]}" if same else "No metric is in all runs"
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
    """A leader beside its rivals, and the one of them that is the hardest to beat."""

    def __init__(
        self, leader: Group, rivals: Sequence[Group], num_tests: int, noise: ranking.NoiseFloor, terms: Terms
    ) -> None:
        """`rivals`: with their differences, the best first. `num_tests`: for which these are corrected."""
        self.open_ones = [rival for rival in rivals if not is_beaten(rival, leader, terms.metric)]
        rival = (self.open_ones or rivals)[0]
        versus, one, two = rival.versus, leader.estimate, rival.estimate
        assert versus is not None and one.mean is not None and two.mean is not None
        self.leader, self.rivals, self.rival, self.terms = leader, rivals, rival, terms
        self.versus = versus  # the rival minus the leader
        self.means, self.nums = (one.mean, two.mean), (one.num, two.num)
        # The comparisons for which the tests are corrected.
        num_comparisons = num_tests * terms.num_tried
        self.num_counted = num_comparisons * terms.num_looks**2
        self.corrected = statistics.corrected_for(self.num_counted)
        self.lead = corrected_lead(rival, leader, terms.metric, self.num_counted)
        self.names = short_name(leader), short_name(rival)
        self.size = two_digits(abs(one.mean - two.mean if versus.mean is None else versus.mean))
        keys = " and ".join(leader.averaged_over)  # each seed is a mean over their settings
        self.mean = f"averaged over {keys}, " if keys else ""
        self.start = f"{self.mean}{self.names[0]} leads {self.names[1]} by {self.size} in {terms.metric.name}"
        # The results behind the lead: `5 paired seeds`, or `4 and 3 unpaired seeds`.
        unpaired = f"{one.num} and {two.num} unpaired {terms.repetitions}"
        self.over = _pairs(versus.num_pairs, "paired", terms) if versus.num_pairs else unpaired
        names = [short_name(g) for g in rivals if g is not rival and g not in self.open_ones]
        self.beaten = f"{len(names)} others" if len(names) > _MAX_NAMES else ", ".join(names)
        self.obstacle, self.std, self.seeds = self._obstacle(), self._std(noise), None
        if self.std and versus.mean and not self.obstacle:
            self.seeds = statistics.seeds_needed(versus.mean, self.std, num_comparisons)

    def verdict(self, groups: Sequence[Group], interacting: Sequence[str] = ()) -> Verdict:
        """`groups`: of which those without a result are named. `interacting`: the keys with which their key does."""
        rest = self.leader.name, self.rival.name, self.lead, self.num_counted
        if self.open_ones:
            return Verdict("undecided", f"{self.undecided}{_looks(self.terms)}", None, *rest, self.seeds)
        evidence = f"{self.over}, {_p_text(self.versus.p_holm, self.num_counted)}"
        also = f"; also better than {self.beaten}" if self.beaten else ""
        names = f"{self.mean}{self.names[0]} is better than {self.names[1]}"
        lead = f"{names} by {self.size} in {self.terms.metric.name}"
        sentence = f"Decided: {lead}{self._on_average(interacting)} ({evidence}){also}{_silent(groups)}."
        return Verdict("decided", f"{sentence}{_looks(self.terms)}", self.leader.name, *rest)

    def effects(self, key: str) -> list["Effect"]:
        """Return the lead of the best value of a key over each other one."""
        leader, metric = self.leader, self.terms.metric
        return [
            Effect.of(
                corrected_lead(rival, leader, metric, self.num_counted),
                is_decided=is_beaten(rival, leader, metric),
                key=key,
                best=leader.labels[key],
                other=rival.labels[key],
                leads=self._leads_with(rival, leader.averaged_over),
            )
            for rival in self.rivals
        ]

    def _on_average(self, interacting: Sequence[str]) -> str:
        """Return the lead with each value of these keys, in words; "" without keys."""
        texts, options = list[str](), {*config_groups(self.leader.runs)}
        for other in interacting:
            leads = self._leads_with(self.rival, [other])
            texts += [_cases(leads, other, self.terms.metric, options)] * (len(leads) > 1)
        return f": {'; '.join(texts)}" if texts else ""

    def _leads_with(self, rival: Group, keys: Sequence[str]) -> dict[str, float]:
        """Return the lead over a rival with each setting of these keys, by its values, of the runs that p is of."""
        rows, is_paired = list[Mapping[str, Group]](), rival.versus is not None and rival.versus.num_pairs
        for group, other in ((self.leader, rival), (rival, self.leader)):
            seeds = [seed for seed in group.counted if not is_paired or seed in other.counted]
            runs = [run for seed in seeds for run in group.counted[seed]]
            cells = group_runs(runs, keys, [*group.averaged_over, *REPETITIONS], self.terms.metric)
            rows.append({" ".join(cell.labels.values()): cell for cell in cells})
        return _leads(*rows)

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
        common = _pairs(versus.num_pairs, "common", self.terms)
        on_pairs = f"on the {common}, {rival} is better by {self.size}"
        reasons = (
            (statistics.are_equal(means, means), f"{leader} and {rival} have the same mean of {metric.name}{equal}"),
            # The leader is complete.
            (metric.is_better(means[1], means[0]),
             f"{rival} has a better mean than {leader}, but {_shortfall(self.rival)}"),
            (is_behind, f"{leader} has the better mean, but {on_pairs}"),
            (bool(self.leader.without_result), f"{self.start}, but {_shortfall(self.leader)}"),
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
        common = _pairs(self.versus.num_pairs, "common", self.terms)
        return f"by the same amount on each of the {common}, so the noise is unknown"

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
            by = "the same sweep, with new seeds" if self.mean else "a sweep of these alone, or hydrant study"
            return f" If this lead is real, about {two_digits(self.seeds)} fresh seeds of each would show it: {by}."
        if self.std is not None:
            return f" Even {statistics.MAX_SEEDS:,} seeds of each would hardly show which."
        few = " Of so few seeds, the noise is hardly known; more need a sweep of their own."
        return few * (not self.terms.has_folds)


def _p_text(p_holm: float | None, num_counted: int) -> str:
    p = statistics.p_value(p_holm)
    return f"p {'< 0.001' if p == '<0.001' else f'= {p}'}{statistics.corrected_for(num_counted)}"


def _looks(terms: Terms) -> str:
    return f" {statistics.looks_text(terms.num_looks)}" * (terms.num_looks > 1)


def _pairs(num: int, kind: str, terms: Terms) -> str:
    """Return a number of pairs in words: `2 paired seeds`."""
    word = "repetitions" if " and " in terms.repetitions else terms.repetitions  # such as seeds and folds
    return f"{num} {kind} {word.removesuffix('s') if num == 1 else word}"


def short_name(group: Group) -> str:
    """Return the name of a group with options alone: `adamw optimizer.lr=0.1` of `optimizer=adamw optimizer.lr=0.1`."""
    options = {*config_groups(group.runs)}
    return " ".join(_short(key, value, options) for key, value in group.labels.items()) or group.name


def _short(key: str, value: str, options: Collection[str]) -> str:
    return value if key in options and value != "null" else f"{key}={value}"


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
    states = sum((Counter(group.states) for group in groups), Counter[str]())
    if not states:
        return "No result: no run is in a group; the warnings say why."
    counted = ", ".join(f"{num} {state}" for state, num in states.items())
    return f"No result: no run has finished with a finite {metric.name} ({counted})."


class Change(Answer, kw_only=True):
    """A difference in a sweep over several keys.

    Attributes:
        is_decided: Whether it is a difference.
        num_pairs: Seeds that both have; 0: compared without pairs.
        mean: In units of the metric.
        low: Of the interval that is corrected for all comparisons.
        p_holm: Corrected for all comparisons.
    """

    is_decided: bool
    num_pairs: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None

    @classmethod
    def of(cls, gap: statistics.Difference, *, is_decided: bool, **fields: Any) -> Self:
        """Return what a difference is, with these other fields."""
        names = ("num_pairs", "mean", "low", "high", "p", "p_holm")
        return cls(is_decided=is_decided, **{name: getattr(gap, name) for name in names}, **fields)


class Effect(Change):
    """The best value of a key minus another one.

    Attributes:
        leads: The best value minus the other one, by setting of the other keys.
    """

    key: str
    best: str
    other: str
    leads: Mapping[str, float]


class Interaction(Change):
    """How a lead changes with a value of another key.

    Attributes:
        lead_of: The first over the second value of the first key.
        change_to: The first for the second value of the second key.
        leads: With the first and with the second of these, in units of the metric.
        with_one_best: The keys with the same best value for each value of the other key.
        num_changes: Of these keys, of which this is the clearest.
    """

    keys: Sequence[str]
    lead_of: Sequence[str]
    change_to: Sequence[str]
    leads: Sequence[float]
    with_one_best: Sequence[str]
    num_changes: int

    def sentence(self, metric: Metric, options: Collection[str], said: set[str]) -> str:
        """Return whose lead depends on what. `options`: the config groups. `said`: whose lead was said."""
        if said.intersection(self.keys):
            return f"depends on {' '.join({*self.keys} - said)}"
        one, two = (_short(self.keys[0], value, options) for value in self.lead_of)
        cases = _cases(dict(zip(self.change_to, self.leads, strict=True)), self.keys[1], metric, options)
        return f"of {one} over {two} in {metric.name} depends on {self.keys[1]}: it is {cases}"


def _cases(leads: Mapping[str, float], key: str, metric: Metric, options: Collection[str]) -> str:
    """Return the largest and the smallest of the leads with values of a key, in words; of two, that is both."""
    sign = 1 if metric.mode == "max" else -1
    cases = sorted(((sign * lead, value) for value, lead in leads.items()), reverse=True)
    texts = [f"{two_digits(lead)} with {_short(key, value, options)}" for lead, value in cases]
    return f"{texts[0]} {'and' if len(texts) == 2 else 'to'} {texts[-1]}"


class Factorial(Answer):
    """What each key changes.

    Attributes:
        effects: The best value of each key minus each other one.
        interactions: By how much a lead changes with a value of another key.
        untested: Keys whose interaction has no test: too few common results, or no noise.
        decided: The keys whose best value is better than each other one.
        left_out: The settings and seeds that an effect does not count, and in which group.
    """

    effects: Sequence[Effect]
    interactions: Sequence[Interaction]
    untested: Sequence[Sequence[str]]
    decided: Sequence[str]
    num_comparisons: int
    left_out: Sequence[str]


def find_factorial(
    runs: Sequence[Run], by: Sequence[str], seed_keys: Sequence[str], terms: Terms
) -> tuple[Factorial, Verdict] | None:
    """Return what each of several keys changes, and the verdict.

    None unless two values of each key share settings of the others. These differ in `by`; `seed_keys` repeat them.
    """
    keys, metric = [*by, *seed_keys], terms.metric
    groups = {key: group_runs(runs, [key], keys, metric) for key in by}
    if len(by) < 2 or not all(_are_crossed(groups[key], key, by) for key in by):
        return None
    ranked = {key: _best_first(of_key, metric) for key, of_key in groups.items()}
    pairs = [*itertools.combinations(by, 2)]
    changes = {pair: _clearest_change(group_runs(runs, pair, keys, metric), metric) for pair in pairs}
    tested = {pair: gap for pair, (gap, _) in changes.items() if gap.p is not None}
    gaps = [ranking.difference(rival, best) for best, *rest in ranked.values() for rival in rest]
    num = max(len(tested) + sum(gap.p is not None for gap in gaps), 1)
    corrected = iter(statistics.corrected([*gaps, *tested.values()], terms.factor))
    cases = dict[str, _Case]()
    for key, (best, *rest) in ranked.items():
        rivals = [replace(rival, versus=next(corrected)) for rival in rest]
        noise = ranking.measured_noise(groups[key], [best, *rest[:1]])
        cases[key] = _Case(best, rivals, num, noise, terms)
    num *= terms.factor
    interactions = [_interaction(next(corrected), num, changes[pair][1]) for pair in tested]
    decided = [one.keys for one in interactions if one.is_decided]
    interacting = {key: [other for of in decided if key in of for other in {*of} - {key}] for key in by}
    verdicts = {key: case.verdict(groups[key], interacting[key]) for key, case in cases.items()}
    factorial = Factorial(
        [effect for key, case in cases.items() for effect in case.effects(key)],
        interactions,
        [pair for pair in pairs if pair not in tested],
        [key for key in by if verdicts[key].status == "decided"],
        num,
        [f"{name} in {g.name}" for g in itertools.chain(*groups.values()) for name in g.left_out],
    )
    return factorial, _of_all(verdicts, interactions, {*config_groups(runs)}, terms)


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


def _interaction(change: statistics.Difference, num_counted: int, fields: Mapping[str, Any]) -> Interaction:
    """Return the interaction of a change, whose p-value is corrected, with the corrected interval."""
    is_decided = change.p_holm is not None and change.p_holm < statistics.SIGNIFICANCE
    at_once = change.at_once(num_counted * fields["num_changes"], is_shown=is_decided)
    return Interaction.of(at_once, is_decided=is_decided, **fields)


def _of_all(
    verdicts: Mapping[str, Verdict], tested: Sequence[Interaction], options: Collection[str], terms: Terms
) -> Verdict:
    """Return the verdict about all keys: first about the clearest one whose best value is the best with each value of
    the keys that it interacts with, else about the clearest interaction; then what else is decided.

    Nobody should take the best value of a key on average where another one is better with some value of another key.
    """
    leads = {key: verdict.lead for key, verdict in verdicts.items()}
    decided = sorted((one for one in tested if one.is_decided), key=lambda one: one.p_holm or 0.0)
    interacting = [key for one in decided for key in one.keys]
    mixed = {key for one in decided for key in one.keys if key not in one.with_one_best}
    ps = {k: (1.0, 1.0) if of is None or of.p_holm is None else (of.p_holm, of.p) for k, of in leads.items()}
    ranked = sorted(verdicts, key=ps.__getitem__)
    clear = [key for key in ranked if verdicts[key].status == "decided" and key not in mixed]
    first = (clear or interacting or ranked)[0]
    verdict, is_first_open = verdicts[first], not clear and not interacting
    open_ones = [key for key in ranked[is_first_open:] if verdicts[key].status != "decided"]
    texts = [f"the lead {one.sentence(terms.metric, options, {*clear[:1]})}" for one in decided]
    ends = [f"--by {','.join(one.keys)} compares their settings." for one in decided]
    if interacting and not clear:
        over = _pairs(decided[0].num_pairs, "paired", terms)
        evidence = f"{over}, {_p_text(decided[0].p_holm, verdict.num_comparisons)}"
        sentence = f"Decided: {texts.pop(0)} ({evidence}). {ends.pop(0)}{_looks(terms)}"
        verdict = Verdict("decided", sentence, num_comparisons=verdict.num_comparisons)
    parts = [f"T{text[1:]}; {end}" for text, end in zip(texts, ends, strict=True)]
    parts += [f"Decided too, on average: {', '.join(clear[1:])}."] * bool(clear[1:])
    names = ", ".join(f"{key}{' on average' * (key in interacting)}" for key in open_ones)
    parts += [f"Undecided{' too' * (verdict.status != 'decided')}: {names}."] * bool(names)
    return replace(verdict, sentence=" ".join([verdict.sentence, *parts]))


_Change = tuple[statistics.Difference, Mapping[str, Any]]
"""How much a lead changes, and the other fields of the interaction."""


def _clearest_change(groups: Sequence[Group], metric: Metric) -> _Change:
    """Return the clearest change of a lead between values of two keys, by whose pairs of values the runs are grouped.

    Each lead over a base value of the first key is compared, seed by seed, with that at a base value of the second key:
    the pair of values with the most changes. p is multiplied by the number of these changes (Bonferroni), which holds
    for any number of seeds. Without a change that can be tested, there is no p.
    """
    cells = {tuple(group.labels.values()): group for group in groups if group.results}
    base, base_two = max(cells, key=lambda c: sum({(c[0], b), (a, c[1])} <= {*cells} for a, b in cells))
    changed = [place for place in cells if place[0] != base and place[1] != base_two]
    corners = [((one, two), (base, two), (one, base_two), (base, base_two)) for one, two in changed]
    squares = [of for of in corners if {*of} <= {*cells} and are_balanced(groups)]
    changes = [_change([cells[place] for place in of], metric) for of in squares]
    tested = [(gap.p, gap, fields) for gap, fields in changes if gap.p is not None]
    if not tested:
        return statistics.Difference(0, None, None, None, None), {}
    p, gap, fields = min(tested, key=lambda one: one[0])
    with_one_best = [key for key in groups[0].labels if _has_one_best([*cells.values()], key, metric)]
    of_all = {"with_one_best": with_one_best, "num_changes": len(changes)}
    return replace(gap, p=min(1.0, len(changes) * p)), {**fields, **of_all}


def _change(square: Sequence[Group], metric: Metric) -> _Change:
    """Return the change of the lead of a value over the base of its key, with a value of another key.

    Args:
        square: the group with both values; with the base of the first key, of the second, and of both.
    """
    both, one_base, two_base, bases = square
    seeds = [seed for seed in both.results if all(seed in group.results for group in square)]
    plus = independent({seed: both.results[seed] + bases.results[seed] for seed in seeds})
    minus = independent({seed: one_base.results[seed] + two_base.results[seed] for seed in seeds})
    gap = statistics.paired(plus, minus, ranking.overlap_of(both))
    leads = [*_leads({"": both, "base": two_base}, {"": one_base, "base": bases}).values()]
    lead_of, change_to = zip(both.labels.values(), bases.labels.values(), strict=True)
    if metric.is_better(0.0, sum(leads)):  # the better value leads
        gap, leads, lead_of = gap.negated(), [-lead for lead in leads], lead_of[::-1]
    if gap.mean is not None and metric.is_better(0.0, gap.mean):  # the larger lead comes first
        gap, leads, change_to = gap.negated(), leads[::-1], change_to[::-1]
    return gap, {"keys": tuple(both.labels), "lead_of": lead_of, "change_to": change_to, "leads": leads}


def _row(groups: Sequence[Group], key: str, value: str) -> Mapping[str, Group]:
    """Return the groups of two keys that have this value of one, by their value of the other one."""
    with_value = [group for group in groups if group.labels[key] == value]
    return {label: group for group in with_value for name, label in group.labels.items() if name != key}


def _leads(row: Mapping[str, Group], rival: Mapping[str, Group]) -> dict[str, float]:
    """Return the lead over a rival with each value that both have, over the seeds that they have with all of these.

    Without such seeds, it is that of all results.
    """
    shared = [group for value in row if value in rival for group in (row[value], rival[value])]
    seeds = [seed for seed in shared[0].results if all(seed in g.results for g in shared)]
    samples = [independent({seed: g.results[seed] for seed in seeds or g.results}) for g in shared]
    means = iter(float(f"{sum(sample) / len(sample):.12g}") for sample in samples)  # without rounding errors
    return {value: next(means) - next(means) for value in row if value in rival}


def _has_one_best(groups: Sequence[Group], key: str, metric: Metric) -> bool:
    """Return whether a value of a key has results with each value of the other key, and no other value is better."""
    rows = [_row(groups, key, value) for value in {group.labels[key] for group in groups}]
    whole = [row for row in rows if all(row.keys() >= rival.keys() for rival in rows)]
    leads = [[lead for rival in rows for lead in _leads(row, rival).values()] for row in whole]
    return any(not any(metric.is_better(0.0, lead) for lead in of_row) for of_row in leads)
