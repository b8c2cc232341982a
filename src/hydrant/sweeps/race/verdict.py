"""When a race is decided, and what its verdict says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hydrant.sweeps.race.sequential import Estimate, confidence_sequence


@dataclass(frozen=True)
class Rule:
    """The rule that decides a race."""

    metric: str
    mode: str  # "max" or "min"
    alpha: float
    negligible: float | None  # a difference that does not matter; None: a race ends only with a winner

    @property
    def confidence(self) -> str:
        return f"{100 * (1 - self.alpha):g} %"


@dataclass(frozen=True)
class Verdict:
    """The state of a race. `winner` is "a", "b", "equal" (up to the negligible difference), or None."""

    winner: str | None
    decided_at: int | None  # pairs
    estimate: Estimate | None  # with all pairs; None: no pair yet
    estimates: Sequence[Estimate]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(pairs: Sequence[tuple[float, float]], rule: Rule) -> Verdict:
    """Return the verdict about pairs of results with the same seed, in the order of the seeds.

    The first pair after which the race is clear decides it; later pairs do not take a verdict back.

    >>> rule = Rule("val/loss", "min", 0.05, None)
    >>> verdict = judge([(0.30, 0.40), (0.31, 0.43), (0.29, 0.38), (0.30, 0.41), (0.32, 0.42)], rule)
    >>> verdict.winner, verdict.decided_at
    ('a', 4)
    """
    sizes = [max(abs(a), abs(b)) for a, b in pairs]
    estimates = confidence_sequence([a - b for a, b in pairs], rule.alpha, sizes)
    for estimate in estimates:
        if (winner := _winner(estimate, rule)) is not None:
            return Verdict(winner, estimate.num_pairs, estimates[-1], estimates)
    return Verdict(None, None, estimates[-1] if estimates else None, estimates)


def _winner(estimate: Estimate, rule: Rule) -> str | None:
    if estimate.low is None or estimate.high is None:
        return None
    if estimate.low > 0 or estimate.high < 0:
        return "a" if (estimate.low > 0) == (rule.mode == "max") else "b"
    if rule.negligible is not None and max(-estimate.low, estimate.high) < rule.negligible:
        return "equal"
    return None


def sentences(verdict: Verdict, rule: Rule, names: Mapping[str, str]) -> list[str]:
    """Return the verdict in sentences. `names`: of the settings "a" and "b"."""
    estimate = verdict.estimate
    if estimate is None:
        return ["no verdict: no pair has finished"]
    interval = "not bounded yet" if estimate.low is None else f"{estimate.low:.4g} to {estimate.high:.4g}"
    facts = (
        f"{rule.metric} of a - b: {estimate.mean:+.4g}, {rule.confidence} interval {interval} that holds for all looks "
        f"together, {estimate.num_pairs} pairs"
    )
    if verdict.winner is None:
        head = f"no verdict: {facts}"
        return [head, "This does not show that the two are equal. More seeds may decide it: --max-seeds."]
    limits = (
        f"All looks together give a wrong verdict with a probability of at most {rule.alpha:g}, if the differences are "
        "independent and normal. The verdict says nothing about other data, models, budgets or settings."
    )
    if verdict.winner == "equal":
        return [
            f"no difference of {rule.negligible:g} or more, after {verdict.decided_at} pairs: {facts}",
            limits,
        ]
    name = names[verdict.winner]
    return [f"winner: {verdict.winner} ({name}), after {verdict.decided_at} pairs: {facts}", limits]
