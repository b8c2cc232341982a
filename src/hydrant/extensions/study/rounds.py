"""The rounds of a study: its tuning, and the test of the best settings.

Of each contender, the tuning tries first settings, then as many finer ones around its best. The test has seeds that
tuned nothing, the same for all contenders, in rounds until the answer is known.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydrant.extensions.study import protocol as protocols
from hydrant.extensions.study.records import Reason, Verdict
from hydrant.extensions.study.trials import BudgetSpent, Trials, tuning_failure
from hydrant.extensions.study.verdict import Standing, failure, find_verdict, judge, why_it_ended
from hydrant.terminal.text import digits_of

_MOST_SHOWN = 20


@dataclass
class Tuned:
    """The tuning of one contender."""

    contender: protocols.Contender
    results: dict[protocols.Setting, float | None] = field(
        default_factory=dict[protocols.Setting, float | None]
    )

    def best(self, protocol: protocols.Protocol) -> protocols.Setting | None:
        """Return the best setting, the first one of several; None if no run has a result."""
        known = {setting: value for setting, value in self.results.items() if value is not None}
        pick = max if protocol.choice.mode == "max" else min
        return pick(known, key=lambda setting: known[setting]) if known else None

    def values(self, setting: protocols.Setting) -> list[str]:
        return [f"{one.key}={value}" for one, value in zip(self.contender.ranges, setting, strict=True)]

    def words(self, setting: protocols.Setting) -> list[str]:
        """Return the overrides of a setting of the contender."""
        return [*self.contender.words, *self.values(setting)]

    def described(self, setting: protocols.Setting) -> str:
        """Return the name of the contender with a setting.

        Such as `adamw (optimizer.lr=0.01)`.
        """
        values = f" ({', '.join(self.values(setting))})" if setting else ""
        return f"{self.contender.name}{values}"

    @property
    def extended_keys(self) -> list[str]:
        """Return the tuned keys of which values beyond the first range were tried."""
        ranges = [(place, one) for place, one in enumerate(self.contender.ranges) if one.is_open]
        first = {one.key: sorted(float(value) for value in one.values) for _, one in ranges}
        tried = [(one.key, float(setting[place])) for place, one in ranges for setting in self.results]
        return [*dict.fromkeys(key for key, x in tried if not first[key][0] <= x <= first[key][-1])]

    def keys_at_end(self, protocol: protocols.Protocol) -> list[str]:
        """Return the tuned keys whose best value is the smallest or the largest that was tried."""
        best, tried = self.best(protocol), list(self.results)
        if best is None:
            return []
        ranges = enumerate(self.contender.ranges)
        return [one.key for place, one in ranges if one.is_open and protocols.is_at_end(place, tried, best)]


class Tuning:
    """Tunes all contenders alike."""

    def __init__(self, protocol: protocols.Protocol, trials: Trials) -> None:
        self.contenders = [Tuned(contender) for contender in protocol.contenders]
        self.num_rounds, self.is_finished = 0, not protocol.keys
        self.why_ended = ""  # if it has fewer rounds than the protocol lets it have
        self._protocol, self._trials = protocol, trials

    def run(self) -> None:
        """Tune.

        Raises:
            BudgetSpent: the budget ended before all contenders had the same number of runs.
        """
        if self.is_finished:
            return
        self._train([(tuned, protocols.first_settings(tuned.contender.ranges)) for tuned in self.contenders])
        while self.num_rounds < self._protocol.rounds and (finer := self._next_round()):
            self._train(finer)
            self.num_rounds += 1
        self.is_finished = True

    def words(self, tuned: Tuned, setting: protocols.Setting, seed: int) -> list[str]:
        """Return the overrides of a run."""
        return [*self._protocol.common, *tuned.words(setting), f"seed={seed}"]

    def table(self) -> dict[str, Any]:
        """Return the results of each contender by its tuned values, in their order, for `--json`."""
        results = {one.contender.name: self._results(one) for one in self.contenders if one.results}
        return {"keys": self._protocol.keys, "metric": self._protocol.choice.metric, "results": results}

    def _results(self, tuned: Tuned) -> dict[str, float | None]:
        """Return the best results of a contender, by the values."""
        sign = -1 if self._protocol.choice.mode == "max" else 1
        ranked = sorted(tuned.results.items(), key=lambda pair: (pair[1] is None, sign * (pair[1] or 0.0)))
        digits = digits_of(value for _, value in ranked)
        return {
            " ".join(setting): value and float(f"{value:.{digits}g}")
            for setting, value in sorted(ranked[:_MOST_SHOWN], key=lambda pair: [*map(_as_number, pair[0])])
        }

    def to_json(self) -> dict[str, Any]:
        seed = self._protocol.first_seed
        return {
            "num_rounds": self.num_rounds,
            "is_finished": self.is_finished,
            "trials": [
                {
                    "contender": tuned.contender.name,
                    "values": dict(zip(self._protocol.keys, setting, strict=True)),
                    "result": value,
                    **self._trials.state(self.words(tuned, setting, seed)),
                }
                for tuned in self.contenders
                for setting, value in tuned.results.items()
            ],
        }

    def _train(self, settings: Sequence[tuple[Tuned, Sequence[protocols.Setting]]]) -> None:
        """Train one run of each setting; the contenders take turns, so that none is ahead when the budget ends."""
        most = max(len(to_try) for _, to_try in settings)
        turns = [(tuned, to_try[n]) for n in range(most) for tuned, to_try in settings if n < len(to_try)]
        words = self._words(turns)
        if self._trials.has_other_seeds(self._protocol.first_seed):
            self._trials.give_up(words)
        try:
            self._trials.run(words)
        finally:  # also of a round that the budget or a signal ends
            for (tuned, setting), run in zip(turns, words, strict=True):
                if self._trials.has_ended(run):
                    tuned.results[setting] = self._trials.result(run, self._protocol.choice.metric)

    def _next_round(self) -> list[tuple[Tuned, list[protocols.Setting]]]:
        """Return the settings of a finer round; none if none follows.

        One follows if it fits into its share of the budget and leaves enough for the test; into all that is left, if
        that does not pay for a test. After the test has begun,
        none does but those that have ended before, as more tuning after the test was seen would be unfair.
        """
        protocol, trials = self._protocol, self._trials
        chosen = [(tuned, tuned.best(protocol)) for tuned in self.contenders]
        finer = [(tuned, protocols.finer_settings(tuned.contender.ranges, list(tuned.results), best))
                 for tuned, best in chosen if best is not None]  # fmt: skip
        if not protocol.per_round:
            return []
        if len(finer) <= 1:
            self.why_ended = "fewer than two contenders had a result"
            return []
        turns = [(tuned, setting) for tuned, to_try in finer for setting in to_try]
        num_new = trials.num_new(self._words(turns))
        affordable, of_test = trials.num_affordable(), len(finer) * protocol.least_seeds
        if affordable >= of_test:  # else no test can follow
            affordable = min(trials.num_affordable(protocols.TUNING_SHARE), affordable - of_test)
        if num_new and (affordable < num_new or trials.has_other_seeds(protocol.first_seed)):
            self.why_ended = "the next one did not fit into the budget before the test"
            return []
        return finer

    def _words(self, turns: Sequence[tuple[Tuned, protocols.Setting]]) -> list[list[str]]:
        return [self.words(tuned, setting, self._protocol.first_seed) for tuned, setting in turns]


class FreshSeeds:
    """Compares the best settings of the contenders."""

    def __init__(self, protocol: protocols.Protocol, trials: Trials, tuning: Tuning) -> None:
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
        paid = paid if is_new and math.isfinite(affordable) else ""
        return f"Test of {', '.join(names)}{paid}." if chosen else ""

    def chosen(self) -> list[tuple[Tuned, protocols.Setting]]:
        """Return the contenders with a best setting. Without tuning, all of them."""
        if not self._protocol.keys:
            return [(tuned, ()) for tuned in self._tuning.contenders]
        chosen = [(tuned, tuned.best(self._protocol)) for tuned in self._tuning.contenders]
        return [(tuned, best) for tuned, best in chosen if best is not None]

    def words(self, tuned: Tuned, setting: protocols.Setting, seed: int) -> list[str]:
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
        tested, reasons = [tuned for tuned, _ in self.chosen()], dict[str, str]()
        seed, metric = self._protocol.first_seed, self._protocol.choice.metric
        for tuned in self._tuning.contenders:
            if tuned not in tested:
                runs = [self._tuning.words(tuned, setting, seed) for setting in tuned.results]
                outcomes = [self._trials.outcome(run, metric) for run in runs]
                reasons[tuned.contender.name] = tuning_failure(outcomes)
        return reasons

    def _why_failed(self, standing: Standing) -> Mapping[str, str]:
        reasons = dict[str, str]()
        for tuned, setting in self.chosen() if standing.failed else ():
            if num := standing.failed.get(tuned.contender.name):
                seeds = (self.words(tuned, setting, seed) for seed in range(self._protocol.seeds))
                ended = itertools.takewhile(self._trials.has_ended, seeds)
                outcomes = [self._trials.outcome(run, self._protocol.rule.metric) for run in ended]
                reasons[tuned.contender.name] = failure(outcomes, num)
        return reasons

    def _next_round(self, chosen: Sequence[tuple[Tuned, protocols.Setting]]) -> list[list[str]]:
        """Return the overrides of the next seeds; none if the study is decided or all seeds are used.

        Raises:
            BudgetSpent: the next seed, or the first ones that can decide, do not fit into the budget.
        """
        active, num = self._read_ended(chosen)
        if not active or num >= self._protocol.seeds:
            return []
        seeds = range(num, num + self._protocol.seeds_of_round(num))
        rounds = [[self.words(*best, seed) for best in active] for seed in seeds]
        affordable, next_runs = self._trials.num_affordable(), list[list[str]]()
        for words in rounds:
            if self._trials.num_new([*next_runs, *words]) > affordable:
                break
            next_runs += words
        if not next_runs or (num < self._protocol.least_seeds and len(next_runs) < sum(map(len, rounds))):
            raise BudgetSpent
        return next_runs

    def _read_ended(
        self, chosen: Sequence[tuple[Tuned, protocols.Setting]]
    ) -> tuple[list[tuple[Tuned, protocols.Setting]], int]:
        """Read the results of all seeds that have ended, which costs nothing.

        Returns:
            the contenders that are left, none if the study is decided; and the number of seeds that they have.
        """
        num = max(map(len, self.results.values()))
        while (standing := self.standing()).ended_by is None:
            active = [best for best in chosen if best[0].contender.name in standing.active]
            words = [self.words(*best, num) for best in active]
            if num >= self._protocol.seeds or not all(map(self._trials.has_ended, words)):
                return active, num
            for (tuned, _), run in zip(active, words, strict=True):
                result = self._trials.result(run, self._protocol.rule.metric)
                self.results[tuned.contender.name].append(result)
            num += 1
        return [], num


def _as_number(text: str) -> float:
    """Return the number of a value; infinity for another one, so that it keeps its place."""
    try:
        return float(text)
    except ValueError:
        return math.inf
