"""The test of a study: seeds that tuned nothing, the same for all contenders, in rounds until the answer is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hydrant.sweeps.study.protocol import Protocol
from hydrant.sweeps.study.ranges import Setting
from hydrant.sweeps.study.trials import BudgetSpent, Trials
from hydrant.sweeps.study.tuning import Tuned, Tuning
from hydrant.sweeps.study.verdict import Reason, Standing, Verdict, find_verdict, judge


class FreshSeeds:
    """Compares the best settings of the contenders."""

    def __init__(self, protocol: Protocol, trials: Trials, tuning: Tuning) -> None:
        self._protocol, self._trials, self._tuning = protocol, trials, tuning
        self.results = dict[str, list[float | None]]()
        self.why_ended: tuple[Reason, str] | None = None

    def run(self) -> None:
        """Train fresh seeds until the study is decided or all seeds are used.

        Raises:
            BudgetSpent: the next seed does not fit into the budget.
        """
        chosen, num = self.chosen(), 0
        if not chosen:
            self.why_ended = "failures", "all runs of the tuning failed"
            return
        self.results = {tuned.contender.name: [] for tuned, _ in chosen}
        while (standing := self.standing()).ended_by is None and num < self._protocol.seeds:
            active = [own for own in chosen if own[0].contender.name in standing.active]
            if (seeds := int(min(self._protocol.seeds_of_round(num), self._num_affordable(active, num)))) < 1:
                raise BudgetSpent
            turns = [(tuned, setting, num + n) for n in range(seeds) for tuned, setting in active]
            values = self._trials.run([self.words(*turn) for turn in turns])
            for (tuned, _, _), value in zip(turns, values, strict=True):
                self.results[tuned.contender.name].append(value)
            num += seeds
        if standing.ended_by is None:
            self.why_ended = "seeds", f"all {num} seeds are used"

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
        return find_verdict(
            self.standing(), self.results, self._protocol.rule, self.without(), self.why_ended
        )

    def without(self) -> Mapping[str, str]:
        """Return why contenders are not in the test."""
        if not self._tuning.is_finished:
            return {}
        names = {tuned.contender.name for tuned, _ in self.chosen()}
        return {
            tuned.contender.name: f"{len(tuned.results)} failed"
            for tuned in self._tuning.contenders
            if tuned.contender.name not in names
        }

    def _num_affordable(self, active: Sequence[tuple[Tuned, Setting]], num: int) -> float:
        """Return how many of the next seeds fit into the budget, for all active contenders."""
        seeds = range(num, num + self._protocol.seeds_of_round(num))
        pending = [self.words(*own, seed) for seed in seeds for own in active]
        affordable = self._trials.num_affordable(pending=pending)
        return math.inf if math.isinf(affordable) else affordable // len(active)
