"""The tuning of a study: first settings of each contender, then finer ones around its best, as many for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydrant.sweeps.study.protocol import TUNING_SHARE, Contender, Protocol
from hydrant.sweeps.study.ranges import Setting, finer_settings, first_settings, is_at_end
from hydrant.sweeps.study.sequential import min_pairs
from hydrant.sweeps.study.trials import Trials


@dataclass
class Tuned:
    """The tuning of one contender."""

    contender: Contender
    results: dict[Setting, float | None] = field(default_factory=dict[Setting, float | None])

    def best(self, protocol: Protocol) -> Setting | None:
        """Return the best setting, the first one of several; None if no run has a result."""
        known = {setting: value for setting, value in self.results.items() if value is not None}
        pick = max if protocol.rule.mode == "max" else min
        return pick(known, key=lambda setting: known[setting]) if known else None

    def words(self, setting: Setting) -> list[str]:
        """Return the overrides of a setting of the contender."""
        values = [f"{one.key}={value}" for one, value in zip(self.contender.ranges, setting, strict=True)]
        return [*self.contender.words, *values]

    @property
    def extended_keys(self) -> list[str]:
        """Return the tuned keys of which values beyond the first range were tried."""
        ranges = [(place, one) for place, one in enumerate(self.contender.ranges) if one.is_open]
        first = {one.key: sorted(float(value) for value in one.values) for _, one in ranges}
        tried = [(one.key, float(setting[place])) for place, one in ranges for setting in self.results]
        return [*dict.fromkeys(key for key, x in tried if not first[key][0] <= x <= first[key][-1])]

    def keys_at_end(self, protocol: Protocol) -> list[str]:
        """Return the tuned keys whose best value is the smallest or the largest that was tried."""
        best, tried = self.best(protocol), list(self.results)
        if best is None:
            return []
        ranges = enumerate(self.contender.ranges)
        return [one.key for place, one in ranges if one.is_open and is_at_end(place, tried, best)]


class Tuning:
    """Tunes all contenders alike.

    Args:
        recorded_rounds: the finer rounds of the finished tuning that this study continues; None: it is not finished.
    """

    def __init__(self, protocol: Protocol, trials: Trials, recorded_rounds: int | None) -> None:
        self.contenders = [Tuned(contender) for contender in protocol.contenders]
        self.num_rounds, self.is_finished = 0, not protocol.keys
        self._protocol, self._trials, self._recorded_rounds = protocol, trials, recorded_rounds

    def run(self) -> None:
        """Tune.

        Raises:
            BudgetSpent: the budget ended before all contenders had the same number of runs.
        """
        if self.is_finished:
            return
        self._train([(tuned, first_settings(tuned.contender.ranges)) for tuned in self.contenders])
        while self._has_next_round():
            self._train([(tuned, self._finer(tuned)) for tuned in self.contenders])
            self.num_rounds += 1
        self.is_finished = True

    def words(self, tuned: Tuned, setting: Setting, seed: int) -> list[str]:
        """Return the overrides of a run."""
        return [*self._protocol.common, *tuned.words(setting), f"seed={seed}"]

    def to_json(self) -> dict[str, Any]:
        seed = self._protocol.first_seed
        return {
            "num_rounds": self.num_rounds,
            "is_finished": self.is_finished,
            "trials": [
                {"contender": tuned.contender.name, "values": dict(zip(self._protocol.keys, setting, strict=True)),
                 "result": value, **self._trials.state(self.words(tuned, setting, seed))}
                for tuned in self.contenders for setting, value in tuned.results.items()
            ],
        }  # fmt: skip

    def _finer(self, tuned: Tuned) -> list[Setting]:
        best = tuned.best(self._protocol)
        return [] if best is None else finer_settings(tuned.contender.ranges, list(tuned.results), best)

    def _train(self, settings: Sequence[tuple[Tuned, Sequence[Setting]]]) -> None:
        """Train one run of each setting; the contenders take turns, so that none is ahead when the budget ends."""
        most = max(len(own) for _, own in settings)
        turns = [(tuned, own[n]) for n in range(most) for tuned, own in settings if n < len(own)]
        words = [self.words(tuned, setting, self._protocol.first_seed) for tuned, setting in turns]
        try:
            self._trials.run(words)
        finally:  # also of a round that the budget or a signal ends
            for (tuned, setting), own in zip(turns, words, strict=True):
                if self._trials.has_ended(own):
                    tuned.results[setting] = self._trials.result(own)

    def _has_next_round(self) -> bool:
        """Whether a finer round follows: it fits into its share of the budget, and leaves enough for the test."""
        protocol, active = self._protocol, [t for t in self.contenders if t.best(self._protocol) is not None]
        if not protocol.per_round or len(active) <= 1:
            return False
        if self._recorded_rounds is not None:
            return self.num_rounds < self._recorded_rounds
        cost = len(active) * protocol.per_round
        of_test = len(active) * min(min_pairs(protocol.rule.pair_alpha), protocol.seeds)
        fits = self._trials.num_affordable(TUNING_SHARE) >= cost
        return self.num_rounds < protocol.rounds and fits and self._trials.num_affordable() >= cost + of_test
