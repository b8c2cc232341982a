"""What is fixed before the first run of a study: its contenders, the ranges, the rule of the test, the limits."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from hydrant.config.command_line import check_overrides
from hydrant.config.flat import is_neutral
from hydrant.config.groups import group_options
from hydrant.errors import ConfigError, quoted, shown
from hydrant.extensions.study.ranges import RUNS, Budget, Range, first_settings
from hydrant.extensions.study.sequential import detectable_effect, min_pairs
from hydrant.extensions.study.verdict import Rule, question
from hydrant.records.files import Objective

FIXED = ("contenders", "common", "tuning", "metric", "mode", "tuning_metric", "alpha", "min_difference", "first_seed",
         "rounds")  # fmt: skip
"""What must not change when a study continues: its error would no longer be what it says."""

TUNING_SHARE = 0.6
"""The share of the budget that finer rounds of the tuning may use; the rest is for fresh seeds."""


@dataclass(frozen=True)
class Contender:
    """A setting that a study compares, with the ranges in which it is tuned."""

    name: str
    words: Sequence[str]  # its overrides
    ranges: Sequence[Range] = ()


@dataclass(frozen=True)
class Protocol:
    """What a study does."""

    contenders: Sequence[Contender]
    common: Sequence[str]  # overrides of all contenders
    rule: Rule
    choice: Objective  # by which the tuning chooses
    rounds: int  # of finer values, at most
    first_seed: int
    seeds: int  # fresh ones, at most
    seeds_at_once: int
    budget: Budget

    @property
    def keys(self) -> list[str]:
        """The tuned keys."""
        return [one.key for one in self.contenders[0].ranges]

    @property
    def num_first(self) -> int:
        """The settings of each contender that are tried first; 0 without tuning."""
        return len(first_settings(self.contenders[0].ranges)) if self.keys else 0

    @property
    def per_round(self) -> int:
        """The settings that a finer round adds to each contender."""
        return 2 * sum(one.is_open for one in self.contenders[0].ranges)

    @property
    def first_fresh_seed(self) -> int:
        return self.first_seed + bool(self.keys)

    @property
    def least_seeds(self) -> int:
        """The fresh seeds that a decision needs at least."""
        return min_pairs(self.rule.pair_alpha)

    @property
    def least_runs(self) -> int:
        """The runs that a decision needs at least."""
        return len(self.contenders) * (self.num_first + self.least_seeds)

    @property
    def tuning_runs(self) -> int:
        """The runs of the tuning with all of its rounds."""
        return len(self.contenders) * (self.num_first + self.rounds * self.per_round)

    @property
    def most_runs(self) -> int:
        """The runs of a budget that pays for all rounds of the tuning and all fresh seeds."""
        num = self.tuning_runs + len(self.contenders) * self.seeds
        return max(num, math.ceil(self.tuning_runs / TUNING_SHARE))

    @property
    def paid_seeds(self) -> int | None:
        """The fresh seeds that the budget's runs pay for if no contender is beaten early; None: not yet known."""
        limit, num = self.budget.limits.get(RUNS), len(self.contenders)
        if limit is None:
            return None if self.budget.limits else self.seeds
        used, of_test = num * self.num_first, num * self.least_seeds
        for _ in range(self.rounds if self.per_round else 0):
            if used + num * self.per_round <= min(TUNING_SHARE * limit, limit - of_test):
                used += num * self.per_round
        return int(min((limit - used) // num, self.seeds))

    def warnings(self, seeds_needed: int | None) -> list[str]:
        """Return why the study may end undecided, before its first run.

        Args:
            seeds_needed: by the answer of an earlier start.
        """
        paid = self.paid_seeds
        lines = list[str]()
        if paid is not None and paid < self.seeds:
            untuned = replace(self, rounds=0).paid_seeds or 0
            rounds = f"--rounds 0 for {untuned}, " if untuned > paid else ""
            enough = f"{rounds}--budget {self.most_runs}runs for all of them"
            lines.append(f"the budget pays for {paid} of {self.seeds} fresh seeds; {enough}")
        if seeds_needed is not None and seeds_needed > self.seeds:
            lines.append(
                f"about {seeds_needed} fresh seeds would show it, by the results so far; give --seeds {seeds_needed}"
            )
        return lines

    def seeds_of_round(self, num_done: int) -> int:
        """Return how many fresh seeds start together. Fewer than the first ones can decide nothing."""
        least = min(min_pairs(self.rule.pair_alpha), self.seeds)
        return least - num_done if num_done < least else min(self.seeds_at_once, self.seeds - num_done)

    @property
    def question(self) -> str:
        return question([contender.name for contender in self.contenders], self.rule)

    def sentences(self) -> list[str]:
        """Return the protocol in words."""
        rule, lines = self.rule, list[str]()
        if self.keys:
            lines.append(self._tuning_sentence())
            for c in self.contenders:
                ranges = "; ".join(f"{one.key} {', '.join(one.values)}" for one in c.ranges)
                lines.append(f"{c.name}: {ranges}.")
        fresh = f"{self.seeds} seeds from {self.first_fresh_seed} on"
        tuned = " that tuned nothing" if self.keys else ""
        lines.append(f"Test: at most {fresh}{tuned}, the same for all contenders.{self._paid_text()}")
        lines.append(
            f"After each seed, a mixture sequential t-test compares each pair at a level of {rule.pair_alpha:.3g}. "
            f"All looks and contenders together give a wrong answer with a probability of at most {rule.alpha:g}, if "
            "the differences are independent and normal. A beaten contender gets no more seeds."
        )
        lines += self._power_sentences()
        lines.append(f"It ends {', or '.join(self._ends())}.")
        return lines

    def _paid_text(self) -> str:
        if (paid := self.paid_seeds) is None:
            return " The study says how many the budget pays for when the tuning has ended."
        more = ", and for more if some contenders are beaten early" if len(self.contenders) > 2 else ""
        most = " at most" if self.budget.needs_measuring else ""
        return f" The budget pays for {paid} of them{most}{more}." if paid < self.seeds else ""

    def _power_sentences(self) -> list[str]:
        """Return which difference the seeds find."""
        rule, num = self.rule, self.seeds if self.paid_seeds is None else self.paid_seeds
        if (effect := detectable_effect(num, rule.pair_alpha, rule.power)) is None:
            return []
        difference = f"{effect:.2g} times the standard deviation of the paired differences"
        lines = [
            f"{num} seeds find a true difference of {difference} in {100 * rule.power:g} of 100 studies."
        ]
        if rule.min_difference is not None:
            std = rule.min_difference / effect
            lines.append(
                f"So they find one of {rule.min_difference:g} if that standard deviation is {std:.2g} or less."
            )
        return lines

    def _tuning_sentence(self) -> str:
        of_each = f"{self.num_first} runs of each contender with seed {self.first_seed}"
        by = f" by {self.choice.metric}" if self.choice.metric != self.rule.metric else ""
        text = f"Tuning of {' and '.join(self.keys)}{by}: {of_each}"
        if not (self.per_round and self.rounds):
            return f"{text}."
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)} of {self.per_round} runs around the best one"
        rounds += ", or beyond it if it is at an end,"
        limit = f" while they fit into {TUNING_SHARE:.0%} of the budget" if self.budget.limits else ""
        return f"{text}, then at most {rounds}{limit}: as many for each."

    def _ends(self) -> list[str]:
        ends = ["when one contender is better than all others"]
        if self.rule.min_difference is not None:
            ends.append(f"when those that are left differ by less than {self.rule.min_difference:g}")
        budget = f" or {self.budget.describe()}" if self.budget.limits else ""
        return [*ends, f"after {self.seeds} seeds{budget}"]

    def to_json(self) -> dict[str, Any]:
        """Return the protocol for study.json."""
        rule = self.rule
        return {
            "contenders": {c.name: list(c.words) for c in self.contenders},
            "common": sorted(
                word for word in self.common if not is_neutral(word.lstrip("+~").partition("=")[0])
            ),
            "tuning": {c.name: {one.key: list(one.values) for one in c.ranges} for c in self.contenders},
            "metric": rule.metric,
            "mode": rule.mode,
            "tuning_metric": self.choice.metric if self.choice.metric != rule.metric else None,
            "alpha": rule.alpha,
            "min_difference": rule.min_difference,
            "first_seed": self.first_seed,
            "rounds": self.rounds,
            "first_fresh_seed": self.first_fresh_seed,
            "max_seeds": self.seeds,
            "paid_seeds": self.paid_seeds,
            "power": rule.power,
            "pair_alpha": rule.pair_alpha,
            "budget": dict(self.budget.limits),
            "sentences": self.sentences(),
        }


def split_contender(text: str) -> tuple[str, list[str]]:
    """Return the name of a contender such as `name=slow optimizer=sgd optimizer.lr=0.1`, and its overrides.

    The name is "" if it has none.

    Raises:
        ConfigError: it is no list of overrides.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError("hydra.sweeper.contenders", f"{shown(text)} has an open quote ({error})") from None
    names = [word.removeprefix("name=") for word in words if word.startswith("name=")]
    words = [word for word in words if not word.startswith("name=")]
    check_overrides(words)
    parser = OverridesParser.create()
    several = [word for word in words if parser.parse_override(word).is_sweep_override()]
    if several or len(names) > 1 or "" in names:
        needs = "one name= or none, and one value of each key"
        remedy = f"give --contender for each value, or --tune {quoted((several or ['<key>'])[0])}"
        raise ConfigError("hydra.sweeper.contenders", needs=needs, got=text, remedy=remedy)
    return next(iter(names), ""), words


def key_of(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def name_contenders(contenders: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return the name of each contender: the given one, else its overrides.

    Without the overrides that all share, and the option alone if it suffices.

    >>> name_contenders([["optimizer=adamw"], ["optimizer=sgd"]], ["", "slow"])
    ['adamw', 'slow']
    >>> name_contenders([["optimizer=adamw", "model.dropout=0"], ["optimizer=adamw", "model.dropout=0.1"]], ["", ""])
    ['model.dropout=0', 'model.dropout=0.1']
    """
    return [name or short for name, short in zip(names, _short_names(contenders), strict=True)]


def _short_names(contenders: Sequence[Sequence[str]]) -> list[str]:
    shared = set(contenders[0]).intersection(*contenders[1:])
    unshared = [[word for word in words if word not in shared] for words in contenders]
    firsts = {key_of(words[0]) for words in unshared if words}
    is_option = len(firsts) == 1 and firsts <= group_options().keys()
    if is_option and all(len(words) == 1 for words in unshared):
        return [words[0].partition("=")[2] for words in unshared]
    return [" ".join(words or every) or "defaults" for words, every in zip(unshared, contenders, strict=True)]
