"""The search space: Hydra's words for several values, as distributions of Optuna."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, QuotedString, RangeSweep

from hydrant.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_SHOWN = "write choice(1, 2), range(1, 9), interval(0.0, 1.0) or tag(log, interval(1e-4, 1e-1))"


@dataclass(frozen=True)
class Space:
    """What differs between trials, and what is the same in all of them. Keys are as in an override, with their `+`."""

    distributions: Mapping[str, BaseDistribution]
    given: Mapping[str, str]  # the same keys, as they were written
    fixed: Sequence[str]  # overrides

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """Those of a trial. The parameters are values of the distributions; of choices, their texts."""
        return [*self.fixed, *(f"{key}={value}" for key, value in params.items())]

    def meant(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a trial, of choices what their texts say."""
        parser = OverridesParser.create()
        found = {key: parser.parse_override(f"{key}={value}").value() for key, value in params.items()}
        return {key: value.text if isinstance(value, QuotedString) else value for key, value in found.items()}

    def values(self, key: str) -> list[Any]:
        """All values of a key; the lowest and the highest of one that has too many to list."""
        from optuna.distributions import CategoricalDistribution

        distribution: Any = self.distributions[key]
        if isinstance(distribution, CategoricalDistribution):
            return list(distribution.choices)
        return list(dict.fromkeys((distribution.low, distribution.high)))

    def grid(self) -> dict[str, list[Any]]:
        """Every value of every key.

        Raises:
            ConfigError: a key has too many to list.
        """
        return {key: _listed(key, distribution) for key, distribution in self.distributions.items()}


def read_space(overrides: Iterable[Override]) -> Space:
    """The space of parsed overrides, of which the last one of a key holds.

    Raises:
        ConfigError: names the key whose values are none to search.
    """
    last = {override.key_or_group + f"@{override.package or ''}": override for override in overrides}
    searched = {o.get_key_element(): o for o in last.values() if o.is_sweep_override()}
    if not searched:
        raise ConfigError("hydra.sweeper.params", f"nothing to search: all keys have one value; {_SHOWN}")
    fixed = [str(o.input_line) for o in last.values() if not o.is_sweep_override()]
    return Space(
        {key: _distribution(key.lstrip("+"), override) for key, override in searched.items()},
        {key: override.get_value_string() for key, override in searched.items()},
        fixed,
    )


def _distribution(key: str, override: Override) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution

    if key == "name":
        raise ConfigError("name", "names the folder of a study, so there is one; seed=0,1 trains several")
    value: Any = override.value()
    tags = set(getattr(value, "tags", ())) - ({"log"} if isinstance(value, IntervalSweep) else set())
    if tags:
        raise ConfigError(key, f"no tag {', '.join(sorted(tags))} is known; {_SHOWN}")
    if isinstance(value, IntervalSweep):
        return _interval(key, value)
    if isinstance(value, RangeSweep):
        return _range(key, value)
    texts = list(dict.fromkeys(override.sweep_string_iterator()))
    if getattr(value, "shuffle", False):  # another order each time, which means nothing here
        texts.sort()
    if not texts:
        raise ConfigError(
            key, f"{override.get_value_string()} is no value at all, so there is nothing to search"
        )
    return CategoricalDistribution(texts)


def _interval(key: str, interval: IntervalSweep) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    low, high, is_log = interval.start, interval.end, "log" in interval.tags
    assert low is not None and high is not None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(key, f"interval({low}, {high}) is empty; give the lower end first")
    if is_log and low <= 0:
        raise ConfigError(key, f"tag(log, interval({low}, {high})) has no logarithm; begin above 0")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=is_log)
    return FloatDistribution(low, high, log=is_log)


def _range(key: str, span: RangeSweep) -> BaseDistribution:
    """The values that a grid of it has: the end is none of them."""
    from optuna.distributions import FloatDistribution, IntDistribution

    values: list[Any] = sorted(float(v) if isinstance(span.step, float) else v for v in span.range())
    if not values:
        raise ConfigError(
            key, f"range({span.start}, {span.stop}) is no value at all, so there is nothing to search"
        )
    kind: Any = IntDistribution if all(isinstance(v, int) for v in values) else FloatDistribution
    return kind(values[0], values[-1], step=abs(span.step))


def _listed(key: str, distribution: Any) -> list[Any]:
    from optuna.distributions import CategoricalDistribution

    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    step = distribution.step
    if step is None or distribution.log:
        told = "the grid sampler needs values that can be listed: write choice(0.1, 0.01) or range(1, 9)"
        raise ConfigError(key.lstrip("+"), f"{told}, or take another hydra/sweeper/sampler")
    count = round((distribution.high - distribution.low) / step) + 1
    return [distribution.low + n * step for n in range(count)]
