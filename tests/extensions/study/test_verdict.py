"""When a study is decided, what its verdict says, and how often it is wrong."""

import numpy as np
import pytest
from marks import slow
from scipy import stats
from studies import bowls, protocol_of, simulate

from hydrant.extensions.study.verdict import Results, Rule, find_verdict, judge

RULE = Rule("val/accuracy", "max", 0.05, 0.8, None, 2)
CLEAR: Results = {"adamw": [0.90, 0.91, 0.89, 0.90, 0.92], "sgd": [0.80, 0.82, 0.80, 0.79, 0.81]}


def rule(mode: str = "max", num: int = 2, min_difference: float | None = None) -> Rule:
    return Rule("val/accuracy", mode, 0.05, 0.8, min_difference, num)


def sentence(results: Results, by: Rule) -> str:
    return find_verdict(judge(results, by), results, by, {}, ("seeds", "all seeds are used")).sentence


@pytest.mark.parametrize(("mode", "winner", "loser"), [("max", "adamw", "sgd"), ("min", "sgd", "adamw")])
def test_the_better_one_wins(mode: str, winner: str, loser: str) -> None:
    standing = judge(CLEAR, rule(mode))
    found = standing.active, standing.beaten, standing.ended_by
    assert found == ([winner], {loser: (winner, 4)}, "decision")
    verdict = find_verdict(standing, CLEAR, rule(mode), {}, None)
    assert (verdict.status, verdict.winner, verdict.rival) == ("decided", winner, loser)
    start = f"Decided: {winner} is better than {loser} by 0.098 in val/accuracy "
    assert verdict.sentence.startswith(f"{start}(4 fresh seeds, 95 % interval ")
    assert verdict.lead is not None
    assert (verdict.lead.mean > 0) == (mode == "max")


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_interval_is_that_of_the_lead_also_where_less_is_better(mode: str) -> None:
    sign = 1 if mode == "max" else -1
    results = {
        "a": [sign * value for value in (0.9, 0.8, 0.9, 0.7, 0.9)],
        "b": [sign * value for value in (0.8, 0.85, 0.9, 0.75, 0.8)],
    }
    start = "Undecided: a leads b by 0.02 in val/accuracy, but either may be better: the 95 % interval of the lead"
    assert sentence(results, rule(mode)).startswith(
        f"{start} is -0.18 to 0.22; all seeds are used. If this lead is real, about 240 seeds of each"
    )
    wider = sentence(results | {"c": [sign * value / 9 for value in results["a"]]}, rule(mode, num=3))
    wide = start.replace("the 95 %", "the 97.5 %")
    assert f"{wide} is -0." in wider
    clear = {name: [sign * value for value in values if value is not None] for name, values in CLEAR.items()}
    lead = "Decided: adamw is better than sgd by 0.098 in val/accuracy (4 fresh seeds, 95 % interval 0.0"
    assert lead in sentence(clear, rule(mode))


def test_later_seeds_take_nothing_back() -> None:
    results = {"adamw": [*CLEAR["adamw"][:4], 0.1, 0.1], "sgd": [*CLEAR["sgd"][:4], 0.9, 1e6]}
    assert judge(results, RULE).beaten == {"sgd": ("adamw", 4)}


def test_a_beaten_contender_leaves_and_the_others_go_on() -> None:
    results = {
        "a": [0.9, 0.91, 0.9, 0.92, 0.9, 0.91],
        "b": [0.9, 0.9, 0.91, 0.91, 0.92, 0.9],
        "c": [0.1, 0.12, 0.11, 0.1, 0.11],
    }
    standing = judge(results, rule(num=3))
    assert standing.beaten == {"c": ("a", 5)}
    assert (standing.active, standing.num_seeds, standing.ended_by) == (["a", "b"], 6, None)


def test_no_difference_ends_a_study() -> None:
    gaps = (0.001, -0.001, 0.002, -0.002, 0.0, 0.001, -0.001, 0.001)
    results = {"a": [0.9 + gap for gap in gaps], "b": [0.9] * 8}
    assert judge(results, rule()).ended_by is None
    by = rule(min_difference=0.02)
    verdict = find_verdict(judge(results, by), results, by, {}, None)
    assert (verdict.status, verdict.winner) == ("no_difference", None)
    assert verdict.sentence.startswith("No difference: a and b differ by less than 0.02 in val/accuracy (")


def test_a_clear_but_small_difference_is_said_to_be_small() -> None:
    assert "by 0.098 in val/accuracy, less than the 0.5 that matters (" in sentence(
        CLEAR, rule(min_difference=0.5)
    )


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"a": [0.9, 0.91], "b": [0.8, 0.82]}, "a leads b by 0.095 in val/accuracy, but 2 fresh seeds"),
        ({"a": [0.9] * 6, "b": [0.8] * 6}, "a leads b by 0.1 in val/accuracy with each of 6 seeds alike, so"),
        ({"a": [0.9] * 6, "b": [0.9] * 6}, "a and b have the same mean of val/accuracy"),
        (
            {"a": [0.9, 0.8, 0.9, 0.7, 0.9], "b": [0.8, 0.85, 0.9, 0.75, 0.8]},
            "all seeds are used. If this lead is real, about 240 seeds",
        ),
        ({"a": [0.9, 0.91], "b": [None, None]}, "only a has results of val/accuracy, so there is nothing"),
        ({"a": [None], "b": [None]}, "no result; all seeds are used; a failed with fresh seed 1; b failed with"),
        ({"a": [], "b": []}, "Undecided: no result; all seeds are used."),
    ],
)  # fmt: skip
def test_an_open_study_says_why(results: Results, words: str) -> None:
    text = sentence(results, RULE)
    assert text.startswith("Undecided: ")
    assert words in text


def test_an_open_study_says_who_is_out() -> None:
    results: Results = {"a": A, "b": [value + 0.001 * (-1) ** n for n, value in enumerate(A)], "c": C}
    verdict = find_verdict(judge(results, rule(num=3)), results, rule(num=3), {}, None)
    assert verdict.status == "undecided"
    [found] = judge(results, rule(num=3)).victories()
    assert verdict.sentence.endswith(f" c is ruled out (beaten by {found.names[0]}).")
    assert (found.names[1], found.estimate.num_pairs) == ("c", 5)
    assert 0 < (found.estimate.low or 0) < found.estimate.mean


def test_a_failed_contender_that_was_better_leaves_the_study_undecided() -> None:
    results: Results = {**CLEAR, "lion": [0.99, 0.98, None]}
    verdict = find_verdict(judge(results, rule(num=3)), results, rule(num=3), {"soap": "9 failed"}, None)
    assert (verdict.status, verdict.winner) == ("undecided", None)
    assert "lion had a better mean of val/accuracy than adamw before it failed" in verdict.sentence
    assert "; soap has no result (9 failed); lion failed with fresh seed 3." in verdict.sentence
    worse: Results = {**CLEAR, "lion": [0.1, 0.2, None]}
    assert find_verdict(judge(worse, rule(num=3)), worse, rule(num=3), {}, None).winner == "adamw"


A, C = [0.9, 0.91, 0.89, 0.9, 0.91, 0.9], [0.8, 0.82, 0.79, 0.8, 0.81, 0.8]
Z = [0.92, 0.86, 0.95, 0.87, 0.93, 0.92, 0.9]  # better than C, but not clearly


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"a": A, "b": [None], "c": C}, "Undecided: a is better than c by 0.098 in val/accuracy (5 fresh seeds, "),
        ({"a": A, "b": [None, 0.9, 0.9, 0.9], "c": C}, "), but b failed before anything compared it with it; b failed"),
        ({"x": [*A[:5], 0.9, None], "y": C[:5], "z": Z}, "Undecided: only x, which failed later, has beaten y; x "),
    ],
)  # fmt: skip
def test_what_only_a_failed_contender_could_tell_leaves_study_undecided(results: Results, words: str) -> None:
    found = judge(results, rule(num=3))
    verdict = find_verdict(found, results, rule(num=3), {}, None)
    assert words in verdict.sentence
    assert (verdict.status, verdict.winner, verdict.ended_by) == ("undecided", None, "failures")


def test_who_beat_the_same_contender_as_a_failed_one_wins() -> None:
    """x beats y, w is beaten by z, then x fails; z has beaten y as clearly."""
    results = {"x": [*A[:5], None], "y": C[:5], "z": [0.95, 0.96, 0.93, 0.95, 0.95, 0.95]}
    verdict = find_verdict(judge(results, rule(num=3)), results, rule(num=3), {}, None)
    assert (verdict.status, verdict.winner) == ("decided", "z")


def test_no_difference_is_not_said_beside_a_contender_that_nothing_compared() -> None:
    results = {
        "a": [0.9, 0.9001, 0.9, 0.8999, 0.9, 0.9001],
        "b": [0.9001, 0.9, 0.8999, 0.9, 0.9001, 0.9],
        "c": [None],
    }
    by = rule(num=3, min_difference=0.02)
    verdict = find_verdict(judge(results, by), results, by, {}, None)
    assert verdict.status == "undecided"
    said = "Undecided: a and b differ by less than 0.02 in val/accuracy (5 fresh seeds), but c failed"
    assert said in verdict.sentence


def test_a_decision_without_a_contender_that_never_trained_says_so() -> None:
    verdict = find_verdict(judge(CLEAR, rule(num=3)), CLEAR, rule(num=3), {"lion": "9 failed"}, None)
    assert verdict.sentence.startswith("Decided, among those that trained: adamw is better than sgd by ")


@pytest.mark.parametrize("num_studies", [40, *slow(500)])
@pytest.mark.parametrize("num", [2, 3, *slow(6)])
def test_equal_contenders_are_decided_in_at_most_5_of_100_studies(num: int, num_studies: int) -> None:
    """Although every seed is looked at, every pair is tested, and each has the luck of its tuning."""
    protocol = protocol_of(num)
    wrong = sum(simulate(protocol, bowls(n, [0.3] * num, depth=0.0)).is_decided for n in range(num_studies))
    assert stats.binom.sf(wrong - 1, num_studies, 0.05) > 0.01


@pytest.mark.parametrize("num_studies", [40, *slow(500)])
def test_a_planted_difference_is_found_with_fewer_runs_than_a_fixed_number(num_studies: int) -> None:
    protocol, losses = protocol_of(4), [0.30, 0.36, 0.40, 0.50]
    ended = [simulate(protocol, bowls(n, losses)) for n in range(num_studies)]
    winners = [study.verdict.winner for study in ended]
    assert winners.count("c0") >= 0.9 * num_studies
    assert sum(name not in ("c0", None) for name in winners) <= stats.binom.isf(0.01, num_studies, 0.05)
    needed = 20  # seeds of each, as a study with a fixed number would use
    assert np.mean([study.num_fresh_runs for study in ended]) < 0.6 * 4 * needed


@pytest.mark.parametrize("num_studies", [30, *slow(500)])
def test_no_difference_is_said_of_contenders_that_are_alike_and_rarely_of_others(num_studies: int) -> None:
    protocol = protocol_of(2, min_difference=0.03)
    alike = [simulate(protocol, bowls(n, [0.3, 0.3], depth=0.0)) for n in range(num_studies)]
    assert sum(s.verdict.status == "no_difference" for s in alike) > 0.7 * num_studies
    apart = [simulate(protocol, bowls(n, [0.3, 0.331], depth=0.0)) for n in range(num_studies)]
    wrong = sum(s.verdict.status == "no_difference" for s in apart)
    assert stats.binom.sf(wrong - 1, num_studies, 0.05) > 0.01
