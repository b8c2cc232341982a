"""A sweep over several keys as one question: what each key changes, and which keys interact.

Each comparison is one of seeds: of their means over the settings of the other keys that all of them have. Holm's
correction counts all comparisons, of all keys and pairs of keys, so a sweep without any effect decides something in at
most 5 of 100 cases. `tests/extensions/compare/test_factorial.py` counts them.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.groups import Group, Metric, Terms, are_balanced, group_runs, independent
from hydrant.extensions.compare.noise_floor import measured_noise
from hydrant.extensions.compare.ranking import (
    best_first,
    difference,
    find_winner,
    overlap_of,
    with_differences,
)
from hydrant.extensions.compare.run import Run
from hydrant.extensions.compare.verdict import Verdict, corrected_lead, find_verdict, is_beaten


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
    ps = {key: _known(difference(rival, first).p for rival in rest) for key, (first, *rest) in ranked.items()}
    of_pairs = _known(clearest and clearest.change.p for clearest in pairs.values())
    num = terms.factor * max(sum(map(len, ps.values())) + len(of_pairs), 1)
    effects, verdicts = list[Effect](), dict[str, Verdict]()
    for key, (leader, *rivals) in ranked.items():
        beside = [*(p for other in by if other != key for p in ps[other]), *of_pairs]
        noise = measured_noise(groups[key], ranked[key][:2])
        verdicts[key] = find_verdict(groups[key], noise, terms, beside)
        for rival in with_differences(rivals, leader, terms.factor, beside):
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
    winner = find_winner(groups, metric)
    with_result = best_first([group for group in groups if group.results], metric)
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
        change, lead_of = statistics.paired(plus, minus, overlap_of(group)), (value, base)
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
