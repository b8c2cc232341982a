"""Studies on synthetic curves, and a sweep that writes the runs of a study instead of training them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hydrant.extensions.study.protocol import Contender, Objective, Protocol, read_range
from hydrant.extensions.study.rounds import FreshSeeds, Tuning
from hydrant.extensions.study.trials import RUNS, BudgetSpent, Trials, read_budget
from hydrant.extensions.study.verdict import Rule, Verdict
from hydrant.runs.folder import choices_in
from hydrant.runs.job import write_records
from hydrant.sweeps.executors.base import SweepJob

Curve = Callable[[str, float, int], float | None]
"""The loss of a contender with a learning rate and a seed; None: the run fails."""


def protocol_of(num: int, budget: str | None = None, *, is_tuned: bool = True, **rule: Any) -> Protocol:
    """Return the protocol of a study of contenders `c0`, `c1`, ..."""
    ranges = [read_range("optimizer.lr", "1e-4..1e-1", 1)] if is_tuned else []
    contenders = [Contender(f"c{n}", [f"optimizer=c{n}"], ranges) for n in range(num)]
    fields = {"alpha": 0.05, "power": 0.8, "min_difference": None, **rule}
    seeds = fields.pop("seeds", 20)
    return Protocol(contenders, [], Rule("val/loss", "min", num_contenders=num, **fields),
                    Objective("val/loss", "min"), 2, 0, seeds, 1, read_budget(budget))  # fmt: skip


class CurveTrials(Trials):
    """Trials without runs: a curve has their results."""

    def __init__(self, protocol: Protocol, curve: Curve) -> None:
        self.budget, self.curve = protocol.budget, curve
        self.known = dict[tuple[str, ...], float | None]()

    def run(self, words: Sequence[Sequence[str]]) -> None:
        for own in words:
            if len(self.known) >= self.budget.limits.get(RUNS, np.inf):
                raise BudgetSpent
            chosen = choices_in(own)
            lr = float(chosen.get("optimizer.lr", 1e-3))
            self.known[tuple(own)] = self.curve(chosen["optimizer"], lr, int(chosen["seed"]))

    def has_ended(self, words: Sequence[str]) -> bool:
        return tuple(words) in self.known

    def result(self, words: Sequence[str], metric: str) -> float | None:
        return self.known[tuple(words)]

    def num_affordable(self, share: float = 1.0) -> float:
        return self.budget.num_affordable({RUNS: len(self.known)}, {RUNS: 1}, share)

    def num_new(self, words: Sequence[Sequence[str]]) -> int:
        return sum(not self.has_ended(own) for own in words)

    def has_other_seeds(self, seed: int) -> bool:
        return False


@dataclass(frozen=True)
class Simulated:
    """The end of a simulated study."""

    num_runs: int
    tuning: Tuning
    fresh: FreshSeeds

    @cached_property
    def verdict(self) -> Verdict:
        return self.fresh.verdict()

    @property
    def is_decided(self) -> bool:
        return self.fresh.standing().ended_by == "decision"

    @property
    def num_fresh_runs(self) -> int:
        return sum(len(values) for values in self.fresh.results.values())


def simulate(protocol: Protocol, curve: Curve) -> Simulated:
    """Run a study on a curve, as the sweeper does."""
    trials = CurveTrials(protocol, curve)
    tuning = Tuning(protocol, trials)
    fresh = FreshSeeds(protocol, trials, tuning)
    try:
        tuning.run()
        fresh.run()
    except BudgetSpent:
        fresh.why_ended = "budget", "the budget is used up"
    return Simulated(len(trials.known), tuning, fresh)


def bowls(study: int, losses: Sequence[float], *, noise: float = 0.02, depth: float = 0.05) -> Curve:
    """Return a curve: a parabola over log10(lr) for each contender, with these losses at its best rate."""

    def curve(name: str, lr: float, seed: int) -> float:
        place = int(name[1:])
        shared = np.random.default_rng([study, seed]).normal(0, 0.05)  # pairing removes it
        own = np.random.default_rng([study, seed, place, int(1e6 - 1e4 * np.log10(lr))]).normal(0, noise)
        return float(losses[place] + depth * (np.log10(lr) + 2.2 + 0.4 * place) ** 2 + shared + own)

    return curve


class Killed(BaseException):
    """The study's process was killed."""


@dataclass
class WrittenRuns:
    """Writes finished runs instead of training them.

    Args:
        value: the last value of the metric, by the overrides of the run; None: the run fails.
        others: values of other metrics; None: the run has not this one.
        dies_after: so many runs; None: never.
    """

    value: Callable[[dict[str, str]], float | None]
    metric: str = "val/accuracy"
    dies_after: int | None = None
    others: Mapping[str, Callable[[dict[str, str]], float | None]] = field(default_factory=dict)
    jobs: list[SweepJob] = field(default_factory=list[SweepJob])
    batches: list[int] = field(default_factory=list[int])  # how many jobs began together

    def train(self, jobs: Sequence[SweepJob], number: int) -> str:
        self.batches.append(len(jobs))
        for job in jobs:
            if self.dies_after is not None and len(self.jobs) >= self.dies_after:
                raise Killed
            self.jobs.append(job)
            job.folder.mkdir(parents=True, exist_ok=True)
            write_records(job.job)
            value = self.value(choices_in(job.words))
            row = {"num_updates": 8, "time": 0.0} | ({} if value is None else {self.metric: value})
            others = {name: other(choices_in(job.words)) for name, other in self.others.items()}
            row |= {name: other for name, other in others.items() if other is not None}
            (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            status = "failed" if value is None else "finished"
            error = {"type": "NonFiniteError", "message": "train/loss is nan"} if value is None else None
            (job.folder / "summary.json").write_text(
                json.dumps({"status": status, "num_updates": 8, "error": error, "num_samples": {"val": 360}})
            )
        return "" if all(self.value(choices_in(job.words)) is not None for job in jobs) else "a run failed"
