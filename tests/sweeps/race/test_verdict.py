"""When a race is decided and what its verdict says."""

from __future__ import annotations

import pytest

from hydrant.sweeps.race.verdict import Rule, judge, sentences

NAMES = {"a": "optimizer=adamw", "b": "optimizer=sgd"}
CLEAR = [(0.90, 0.80), (0.91, 0.82), (0.89, 0.80), (0.90, 0.79), (0.92, 0.81)]


@pytest.mark.parametrize(("mode", "winner"), [("max", "a"), ("min", "b")])
def test_the_better_setting_wins(mode: str, winner: str) -> None:
    rule = Rule("val/accuracy", mode, 0.05, None)
    verdict = judge(CLEAR, rule)
    assert (verdict.winner, verdict.decided_at) == (winner, 4)
    text = sentences(verdict, rule, NAMES)
    assert text[0].startswith(
        f"winner: {winner} ({NAMES[winner]}), after 4 pairs: val/accuracy of a - b: +0.1, 95 % interval"
    )
    assert "a probability of at most 0.05" in text[1]
    assert "The verdict says nothing about other data" in text[1]


def test_later_pairs_do_not_take_a_verdict_back() -> None:
    rule = Rule("val/accuracy", "max", 0.05, None)
    verdict = judge([*CLEAR, (0.1, 0.9), (0.1, 1e6)], rule)
    assert (verdict.winner, verdict.decided_at) == ("a", 4)
    assert verdict.estimate is not None
    assert verdict.estimate.num_pairs == 7


def test_a_negligible_difference_ends_a_race() -> None:
    gaps = (0.001, -0.001, 0.002, -0.002, 0.0, 0.001, -0.001, 0.001)
    pairs = [(0.9 + gap, 0.9) for gap in gaps]
    assert judge(pairs, Rule("val/accuracy", "max", 0.05, None)).winner is None
    rule = Rule("val/accuracy", "max", 0.05, 0.02)
    verdict = judge(pairs, rule)
    assert verdict.winner == "equal"
    assert sentences(verdict, rule, NAMES)[0].startswith("no difference of 0.02 or more, after ")


def test_an_open_race_says_that_it_is_no_proof_of_equality() -> None:
    rule = Rule("val/accuracy", "max", 0.05, None)
    assert sentences(judge([], rule), rule, NAMES) == ["no verdict: no pair has finished"]
    text = sentences(judge(CLEAR[:2], rule), rule, NAMES)
    assert "95 % interval not bounded yet" in text[0]
    assert text[1].startswith("This does not show that the two are equal.")
