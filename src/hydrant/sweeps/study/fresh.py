"""The test of a study: seeds that tuned nothing, the same for all contenders, in rounds until the answer is known."""

import itertools
import math
from collections.abc import Mapping, Sequence

from hydrant.records.files import Reason, Verdict
from hydrant.sweeps.study.answer import tuning_failure
from hydrant.sweeps.study.protocol import Protocol
from hydrant.sweeps.study.ranges import Setting
from hydrant.sweeps.study.trials import BudgetSpent, Trials
from hydrant.sweeps.study.tuning import Tuned, Tuning
from hydrant.sweeps.study.verdict import Standing, failure, find_verdict, judge, why_it_ended


class FreshSeeds:
    """Compares the best settings of the contenders."""

    def __init__(self, protocol: Protocol, trials: Trials, tuning: Tuning) -> None:
        self._protocol, self._trials, self._tuning = protocol, trials, tuning
        self.results = dict[str, list[float | None]]()
        self.why_ended: Reason | None = None  # if its results do not say it

    def run(self) -> None:
        """Train fresh seeds until the study is decided or all seeds are used.

        Raises:
            BudgetSpent: the next seed does not fit into the budget.
        """
        chosen = self.chosen()
        if not chosen:
            self.why_ended = "failures"
            return
        self.results = {tuned.contender.name: [] for tuned, _ in chosen}
        try:
            while words := self._next_round(chosen):
                self._trials.run(words)
        finally:  # also of a round that the budget or a signal ends
            self._read_ended(chosen)
        if self.standing().ended_by is None:
            self.why_ended = "seeds"

    def opening(self) -> str:
        """Return what is tested, and for how many seeds the budget is enough."""
        chosen = self.chosen()
        names = [tuned.described(setting) for tuned, setting in chosen]
        affordable = self._trials.num_affordable() // max(len(chosen), 1)
        is_new = not self._trials.has_other_seeds(self._protocol.first_seed)
        least = self._protocol.least_seeds
        paid = f"; the budget pays for about {affordable:.0f} fresh seeds"
        paid += f", and a decision needs {least}, so none begins" if affordable < least else ""
        return (
            f"Test of {', '.join(names)}{paid if is_new and math.isfinite(affordable) else ''}."
            if chosen
            else ""
        )

    def chosen(self) -> list[tuple[Tuned, Setting]]:
        """Return the contenders with a best setting. Without tuning, all of them."""
        if not self._protocol.keys:
            return [(tuned, ()) for tuned in self._tuning.contenders]
        found = [(tuned, tuned.best(self._protocol)) for tuned in self._tuning.contenders]
        return [(tuned, best) for tuned, best in found if best is not None]

    def words(self, tuned: Tuned, setting: Setting, seed: int) -> list[str]:
        """Return the overrides of a run with one of the fresh seeds, counted from 0."""
        return self._tuning.words(tuned, setting, self._protocol.first_fresh_seed + seed)

    def standing(self) -> Standing:
        return judge(self.results, self._protocol.rule)

    def verdict(self) -> Verdict:
        standing, protocol = self.standing(), self._protocol
        why_ended = why_it_ended(self.why_ended, protocol.seeds, protocol.budget.describe())
        return find_verdict(
            standing, self.results, protocol.rule, self.without(), why_ended, self._why_failed(standing)
        )

    def without(self) -> Mapping[str, str]:
        """Return what happened to contenders that are not in the test."""
        if not self._tuning.is_finished:
            return {}
        names = {tuned.contender.name for tuned, _ in self.chosen()}
        seed, metric = self._protocol.first_seed, self._protocol.choice.metric
        outcomes = {
            tuned.contender.name: [
                self._trials.outcome(self._tuning.words(tuned, setting, seed), metric)
                for setting in tuned.results
            ]
            for tuned in self._tuning.contenders
            if tuned.contender.name not in names
        }
        return {name: tuning_failure(of_trials) for name, of_trials in outcomes.items()}

    def _why_failed(self, standing: Standing) -> Mapping[str, str]:
        found = dict[str, str]()
        for tuned, setting in self.chosen() if standing.failed else ():
            if num := standing.failed.get(tuned.contender.name):
                seeds = (self.words(tuned, setting, seed) for seed in range(self._protocol.seeds))
                ended = itertools.takewhile(self._trials.has_ended, seeds)
                outcomes = [self._trials.outcome(own, self._protocol.rule.metric) for own in ended]
                found[tuned.contender.name] = failure(outcomes, num)
        return found

    def _next_round(self, chosen: Sequence[tuple[Tuned, Setting]]) -> list[list[str]]:
        """Return the overrides of the next seeds; none if the study is decided or all seeds are used.

        Raises:
            BudgetSpent: the next seed, or the first ones that can decide, do not fit into the budget.
        """
        active, num = self._read_ended(chosen)
        if not active or num >= self._protocol.seeds:
            return []
        seeds = range(num, num + self._protocol.seeds_of_round(num))
        rounds = [[self.words(*own, seed) for own in active] for seed in seeds]
        affordable, found = self._trials.num_affordable(), list[list[str]]()
        for words in rounds:
            if self._trials.num_new([*found, *words]) > affordable:
                break
            found += words
        if not found or (num < self._protocol.least_seeds and len(found) < sum(map(len, rounds))):
            raise BudgetSpent
        return found

    def _read_ended(self, chosen: Sequence[tuple[Tuned, Setting]]) -> tuple[list[tuple[Tuned, Setting]], int]:
        """Read the results of all seeds that have ended, which costs nothing.

        Returns:
            the contenders that are left, none if the study is decided; and the number of seeds that they have.
        """
        num = max(map(len, self.results.values()))
        while (standing := self.standing()).ended_by is None:
            active = [own for own in chosen if own[0].contender.name in standing.active]
            words = [self.words(*own, num) for own in active]
            if num >= self._protocol.seeds or not all(map(self._trials.has_ended, words)):
                return active, num
            for (tuned, _), own in zip(active, words, strict=True):
                result = self._trials.result(own, self._protocol.rule.metric)
                self.results[tuned.contender.name].append(result)
            num += 1
        return [], num
