"""What a study may use: the values of a tuned key, and its budget in runs, updates and seconds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from hydrant.config.command_line import check_grid, check_overrides, swept_values
from hydrant.config.compose import JobComposer
from hydrant.config.flat import is_neutral
from hydrant.config.groups import option_path
from hydrant.config.schema import REPETITIONS
from hydrant.errors import ConfigError, quoted, shown
from hydrant.files.user_files import read_marked

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


RUNS, UPDATES, WALL, CPU = "runs", "updates", "wall_seconds", "cpu_seconds"

_UNITS: Mapping[str, tuple[str, float]] = {
    "run": (RUNS, 1), "runs": (RUNS, 1), "update": (UPDATES, 1), "updates": (UPDATES, 1),
    "s": (WALL, 1), "min": (WALL, 60), "h": (WALL, 3600),
    "cpu-s": (CPU, 1), "cpu-min": (CPU, 60), "cpu-h": (CPU, 3600),
}  # fmt: skip

_NAMES = {RUNS: "runs", UPDATES: "updates", WALL: "seconds", CPU: "processor seconds"}

Amounts = Mapping[str, float]
"""How much of each: `RUNS`, `UPDATES`, `WALL`, `CPU`."""


@dataclass(frozen=True)
class Budget:
    """The limits of a study. A resource without a limit is not in it."""

    limits: Amounts

    def describe(self) -> str:
        """Return the limits in words.

        >>> read_budget("40runs,10min").describe()
        '40 runs and 600 seconds'
        """
        return " and ".join(f"{limit:,g} {_NAMES[name]}" for name, limit in self.limits.items())

    def num_affordable(self, used: Amounts, cost: Amounts, share: float = 1.0) -> float:
        """Return how many runs may begin; infinity if nothing limits them.

        Args:
            used: by the study.
            cost: of a run, as expected; 0 where it is unknown.
            share: of the budget that may be used.
        """
        return min((self._num_runs(name, used, cost, share) for name in self.limits), default=math.inf)

    def lets_continue(self, used: Amounts) -> bool:
        """Whether runs that have begun may continue: they count as runs already, but cost updates and time."""
        return all(used[name] < limit for name, limit in self.limits.items() if name != RUNS)

    @property
    def needs_measuring(self) -> bool:
        """Whether only a run tells how many fit."""
        return any(name != RUNS for name in self.limits)

    def enlarged(self, used: Amounts, cost: Amounts, num: int) -> Budget:
        """Return a budget that lets so many more runs begin, with a tenth more of what only a run can tell.

        Where the cost of a run is unknown, it is three times what was used: starting alone has used up the limit.

        Args:
            num: the runs.
        """
        limits = dict(self.limits)
        for name in limits:
            each = cost[name] * (1.0 if name == RUNS else 1.1)
            more = num * each if each else 2 * used[name]
            amount = used[name] + more
            size = 60 if name in (WALL, CPU) and amount > 60 else 1
            limits[name] = max(limits[name], float(math.ceil(amount / size) * size))
        return Budget(limits)

    def words(self) -> str:
        """Return these limits as `read_budget` reads them.

        >>> read_budget("40runs,600s,90cpu-s").words()
        '40runs,10min,90cpu-s'
        """
        return ",".join(_written(name, limit) for name, limit in self.limits.items())

    def _num_runs(self, name: str, used: Amounts, cost: Amounts, share: float) -> float:
        left = self.limits[name] * share - used[name]
        if left <= 0:
            return 0
        return math.inf if cost[name] == 0.0 else left / cost[name]


def _written(name: str, limit: float) -> str:
    units = [(size, unit) for unit, (kind, size) in _UNITS.items() if kind == name]
    size, unit = max((fitting for fitting in units if limit % fitting[0] == 0), default=units[0])
    return f"{limit / size:.15g}{unit}"


def read_budget(text: str | None) -> Budget:
    """Return the budget that a text such as `40runs,10min` describes.

    Raises:
        ConfigError: it has an unknown unit, no amount above 0, a part of a run, or two limits of a kind.
    """
    limits = dict[str, float]()
    for part in [] if text is None else text.split(","):
        match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\+?\d+)?)\s*([a-z-]+)\s*", part)
        amount, unit = (float(match[1]), match[2]) if match else (0.0, "")
        name, factor = _UNITS.get(unit, ("", 1))
        is_part = name in (RUNS, UPDATES) and not amount.is_integer()
        if not name or name in limits or is_part or not 0 < amount < math.inf:
            needs = "whole numbers of runs and updates, and times, each once"
            remedy = "write 40runs, 5000updates, 10min or 10cpu-min, or several: 40runs,10min"
            raise ConfigError("hydra.sweeper.budget", needs=needs, got=text, remedy=remedy)
        limits[name] = amount * factor
    return Budget(limits)


_ABSENT = object()


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
        if OmegaConf.select(config, key, default=_ABSENT) is _ABSENT:
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
