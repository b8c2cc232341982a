"""What is fixed before the first run of a study: its contenders, the ranges, the rule of the test, the limits."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hydrant.config.command_line import check_grid, check_overrides, swept_values
from hydrant.config.compose import JobComposer
from hydrant.config.flat import is_neutral
from hydrant.config.groups import REPETITIONS, group_options, option_path
from hydrant.errors import ConfigError, quoted, shown
from hydrant.extensions.study.trials import RUNS, Budget
from hydrant.extensions.study.verdict import Rule, detectable_effect, min_pairs, question
from hydrant.files.on_disk import read_marked
from hydrant.records import Objective

Setting = tuple[str, ...]
"""A value of each tuned key, in the order of the keys."""

_NUM_FIRST = {1: 5}  # by the number of tuned keys

_NUM_FIRST_OF_SEVERAL = 3

_DEFAULT_FACTOR = 10.0

_MIN_LOG_RATIO = 10.0


@dataclass(frozen=True)
class Range:
    """The values of a key that a contender tries first.

    Args:
        values: as texts of overrides.
        is_open: finer values may follow; a list of values is tried as it is.
        is_log: the values lie at equal ratios, else at equal distances.
        is_whole: the key takes whole numbers.
    """

    key: str
    values: tuple[str, ...]
    is_open: bool = False
    is_log: bool = False
    is_whole: bool = False


def read_range(key: str, text: str, num_keys: int, *, is_whole: bool = False) -> Range:
    """Return the range that a text such as `1e-4..1e-1` describes.

    From a factor of 10 on, the values lie at equal ratios.

    Raises:
        ConfigError: an end is no finite number, they are in the wrong order, or too few whole numbers lie between them.

    >>> read_range("optimizer.lr", "1e-4..1e-2", 1).values
    ('0.0001', '0.000316', '0.001', '0.00316', '0.01')
    >>> read_range("model.dropout", "0..0.4", 1).values
    ('0', '0.1', '0.2', '0.3', '0.4')
    """
    try:
        low, high = map(float, text.split(".."))
        is_range = -math.inf < low < high < math.inf
    except ValueError:
        is_range, low, high = False, 0.0, 0.0
    if not is_range:
        needs, remedy = "two finite numbers, the smaller one first", f"write {key}=1e-4..1e-1"
        raise ConfigError(key, needs=needs, got=text, remedy=remedy)
    return _spaced(key, low, high, num_keys, is_whole)


def is_whole(default: Any) -> bool:
    """Return whether a key takes whole numbers, by its default. 0 and 1 are also written for fractions."""
    return isinstance(default, int) and default > 1


def range_around(key: str, default: Any, num_keys: int) -> Range:
    """Return the range of a key that names none: from a tenth of its default to ten times it.

    Raises:
        ConfigError: the default is no number above 0.

    >>> range_around("optimizer.lr", 1e-3, 1).values
    ('0.0001', '0.000316', '0.001', '0.00316', '0.01')
    >>> range_around("global_batch_size", 64, 1).values
    ('6', '20', '64', '202', '640')
    """
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if not is_number or not 0 < default < math.inf:
        message = f"has the default {shown(default)}, around which no range lies"
        raise ConfigError(key, message, remedy=f"write {key}=1e-4..1e-1 or a list")
    low = default / _DEFAULT_FACTOR
    return _spaced(
        key, max(low, 1) if is_whole(default) else low, default * _DEFAULT_FACTOR, num_keys, is_whole(default)
    )


def declared_range(key: str, options: Mapping[str, str | None]) -> str:
    """Return the range that an option's file declares, as in `# tune lr: 1e-3..1 (the source)`; "" if it has none.

    Args:
        options: the option of each config group.
    """
    group, _, name = key.partition(".")
    file = option_path(group, options.get(group) or "")
    text = read_marked(file, errors="replace") if file.is_file() else ""
    match = re.search(rf"^# tune {re.escape(name)}: (\S+)(?: \(.+\))?$", text, re.MULTILINE)
    return match[1] if match else ""


def first_settings(ranges: Sequence[Range]) -> list[Setting]:
    """Return the settings that are tried first: every combination. Without ranges, the one empty setting."""
    return list(itertools.product(*(one.values for one in ranges)))


def finer_settings(ranges: Sequence[Range], tried: Sequence[Setting], best: Setting) -> list[Setting]:
    """Return two new settings for each open range, around the best one.

    Each new value lies in the middle between the best one and a neighbour. If the best one is at an end of the tried
    values, both lie outside, one and two steps away; values at equal distances stay inside.

    >>> lr = Range("optimizer.lr", ("0.01", "0.1", "1"), is_open=True, is_log=True)
    >>> finer_settings([lr], [("0.01",), ("0.1",), ("1",)], ("0.1",))
    [('0.0316',), ('0.316',)]
    >>> finer_settings([lr], [("0.01",), ("0.1",), ("1",)], ("1",))
    [('10',), ('100',)]
    >>> size = Range("global_batch_size", ("2", "3", "4"), is_open=True, is_log=True, is_whole=True)
    >>> finer_settings([size], [("2",), ("3",), ("4",)], ("3",))
    [('1',), ('5',)]
    """
    settings = list[Setting]()
    for place, one in enumerate(ranges):
        if one.is_open:
            axis = sorted({float(setting[place]) for setting in tried})
            values = _around(axis, float(best[place]), one.is_log)
            texts = _free_whole(values, axis) if one.is_whole else [_text(value, axis) for value in values]
            settings += [(*best[:place], text, *best[place + 1 :]) for text in texts]
    return settings


def is_at_end(place: int, tried: Sequence[Setting], best: Setting) -> bool:
    """Return whether the best value of a key is the smallest or the largest that was tried."""
    axis = [float(setting[place]) for setting in tried]
    return float(best[place]) in (min(axis), max(axis))


def _spaced(key: str, low: float, high: float, num_keys: int, is_whole: bool) -> Range:
    num = _NUM_FIRST.get(num_keys, _NUM_FIRST_OF_SEVERAL)
    shares = [n / (num - 1) for n in range(num)]
    is_log = low > 0 and high / low >= _MIN_LOG_RATIO * 0.999
    values = [low * (high / low) ** share if is_log else low + (high - low) * share for share in shares]
    texts = tuple(str(round(value)) if is_whole else _text(value, ()) for value in values)
    if len(set(texts)) < num:
        message = f"takes whole numbers, of which {low:g}..{high:g} has no {num} at about equal steps"
        remedy = f"write a list: {key}={','.join(dict.fromkeys(texts))}"
        raise ConfigError(key, message, remedy=remedy)
    return Range(key, texts, is_open=True, is_log=is_log, is_whole=is_whole)


def _around(axis: Sequence[float], best: float, is_log: bool) -> list[float]:
    """Return two values around the best one of an axis with two values or more."""
    place = axis.index(best)
    lower = axis[place - 1] if place > 0 else None
    upper = axis[place + 1] if place + 1 < len(axis) else None
    neighbour = upper if lower is None else lower
    assert neighbour is not None
    if is_log and (lower is None or upper is None):
        return [best * (best / neighbour), best * (best / neighbour) ** 2]
    if lower is None or upper is None:
        return sorted(best + (neighbour - best) * share for share in (1 / 3, 2 / 3))
    if is_log:
        return [math.sqrt(lower * best), math.sqrt(upper * best)]
    return [(lower + best) / 2, (upper + best) / 2]


def _free_whole(values: Sequence[float], axis: Sequence[float]) -> list[str]:
    """Return the whole number next to each value that is not yet tried."""
    taken, least = {round(value) for value in axis}, min(1, round(min(axis)))
    for value in values:
        nearest_first = (n for step in itertools.count() for n in (round(value) - step, round(value) + step))
        taken.add(next(n for n in nearest_first if n >= least and n not in taken))
    return [str(n) for n in sorted(taken - {round(value) for value in axis})]


def _text(value: float, beside: Sequence[float]) -> str:
    """Return a number with three digits, or with all of them if another value is written alike."""
    short = f"{value:.3g}"
    return repr(value) if float(short) in beside else short


def read_ranges(tune: Sequence[str], words: Sequence[str], composer: JobComposer) -> list[Range]:
    """Return the range of each tuned key for a contender: given, declared by its option, or around its default.

    Args:
        tune: `optimizer.lr`, `optimizer.lr=1e-4..1e-1` or `optimizer.lr=1e-3,1e-2`.
        words: all overrides of the contender.

    Raises:
        ConfigError: a key is unknown or has no range.
    """
    if not tune:
        return []
    config = composer.compose(list(words))
    for text in tune:
        key, equals, _ = text.partition("=")
        _check_key(key)
        if OmegaConf.select(config, key, default=...) is ...:
            check_overrides([text if equals else f"{key}=..."])  # raises: which key is meant
            composer.compose([*words, f"{key}=null"])  # raises: what is wrong with it
    options: Any = OmegaConf.to_container(config.hydra.runtime.choices)
    return [_read_range(text, config, options, composer, len(tune)) for text in tune]


def _check_key(key: str) -> None:
    """Raise ConfigError for a key that a study cannot tune."""
    if key in REPETITIONS or is_neutral(key) or re.match(r"hydra(\.|/|$)", key):
        luck = "it repeats a run, and its best value is luck"
        why = luck if key in REPETITIONS else "it has no effect on results"
        raise ConfigError(key, f"cannot be tuned: {why}")


def _read_range(text: str, config: Any, options: Any, composer: JobComposer, num_keys: int) -> Range:
    key, equals, value = text.partition("=")
    default = OmegaConf.select(config, key)
    if not equals:
        declared = declared_range(key, options)
        return read_range(key, declared, num_keys) if declared else range_around(key, default, num_keys)
    if ".." in value:
        return read_range(key, value, num_keys, is_whole=is_whole(default))
    check_overrides([text])
    [override] = composer.parse([text])
    check_grid([override])
    values = list(swept_values(key, override)) if override.is_sweep_override() else [value]
    texts = [str(item) for item in values]
    if len(set(texts)) < max(len(texts), 2) or {"nan", "inf", "-inf"} & {*texts}:
        remedy = f"write {quoted(key)}=1e-4..1e-1, or a list"
        raise ConfigError(key, needs="two finite values or more, each once", got=value, remedy=remedy)
    return Range(key, tuple(texts))


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
        return max(self.all_runs, math.ceil(self.tuning_runs / TUNING_SHARE))

    @property
    def all_runs(self) -> int:
        """The runs with all rounds of the tuning and all fresh seeds of each contender."""
        return self.tuning_runs + len(self.contenders) * self.seeds

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
            more = f"give --seeds {seeds_needed}"
            lines.append(f"about {seeds_needed} fresh seeds would show it, by the results so far; {more}")
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
        spread = "standard deviations of the differences that one seed makes"
        share = f"{100 * rule.power:g} of 100 studies"
        lines = [f"With {num} seeds, {share} find a true difference of {effect:.2g} {spread}."]
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
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)} of {self.per_round} runs of each"
        limit = f", while they fit into {TUNING_SHARE:.0%} of the budget" if self.budget.limits else ""
        return f"{text}. Then at most {rounds}{limit}: around the best one, or beyond it if it is at an end."

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
            "common": sorted(w for w in self.common if not is_neutral(w.lstrip("+~").partition("=")[0])),
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
