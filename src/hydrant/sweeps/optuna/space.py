"""The search space: Hydra's sweep syntax, read as distributions of Optuna."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, QuotedString, RangeSweep
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from hydrant.config.command_line import MAX_JOBS, swept_values
from hydrant.errors import ConfigError

_EXAMPLES = "write choice(1, 2), range(1, 9), interval(0.0, 1.0) or tag(log, interval(1e-4, 1e-1))"


@dataclass(frozen=True)
class Space:
    """The search space of a study. Keys are those of the overrides, with their `+`."""

    distributions: Mapping[str, BaseDistribution]
    texts: Mapping[str, str]  # of the same keys: what the user wrote
    fixed: Sequence[str]  # the overrides that are the same in all trials

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial with these parameters. The parameter of a choice is its text."""
        return [*self.fixed, *(f"{key}={value}" for key, value in params.items())]

    def parse_choices(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a trial with the texts of choices parsed as Hydra parses them."""
        parser = OverridesParser.create()
        values = {key: parser.parse_override(f"{key}={value}").value() for key, value in params.items()}
        return {key: v.text if isinstance(v, QuotedString) else v for key, v in values.items()}

    def values(self, key: str) -> list[Any]:
        """Return all choices of a key; of a range or an interval, the lowest and the highest value."""
        distribution: Any = self.distributions[key]
        if isinstance(distribution, CategoricalDistribution):
            return list(distribution.choices)
        return list(dict.fromkeys((distribution.low, distribution.high)))

    def grid(self) -> dict[str, list[Any]]:
        """Return every value of every key.

        Raises:
            ConfigError: the values of a key cannot be listed.
        """
        return {key: _list_values(key, distribution) for key, distribution in self.distributions.items()}


def read_space(overrides: Iterable[Override]) -> Space:
    """Return the search space of parsed overrides. The last override of a key counts.

    Raises:
        ConfigError: names the key whose values cannot be searched.
    """
    last = {override.key_or_group + f"@{override.package or ''}": override for override in overrides}
    searched = {o.get_key_element(): o for o in last.values() if o.is_sweep_override()}
    if not searched:
        message = "nothing to search: all keys have one value"
        raise ConfigError("hydra.sweeper.params", message, remedy=_EXAMPLES)
    fixed = [str(o.input_line) for o in last.values() if not o.is_sweep_override()]
    return Space(
        {key: _distribution(key.lstrip("+"), override) for key, override in searched.items()},
        {key: override.get_value_string() for key, override in searched.items()},
        fixed,
    )


def _distribution(key: str, override: Override) -> BaseDistribution:
    if key == "name":
        message = "is the folder of the study, so it needs one value"
        raise ConfigError("name", message, remedy="seed=0,1 trains several runs")
    value: Any = override.value()
    tags = set(getattr(value, "tags", ())) - ({"log"} if isinstance(value, IntervalSweep) else set())
    if tags:
        raise ConfigError(key, f"no tag {', '.join(sorted(tags))} is known", remedy=_EXAMPLES)
    if isinstance(value, IntervalSweep):
        return _interval(key, value)
    if isinstance(value, RangeSweep):
        return _range(key, override, value)
    texts = list(dict.fromkeys(override.sweep_string_iterator()))
    if getattr(value, "shuffle", False):  # Hydra has shuffled them; the order must be the same in each start
        texts.sort()
    if not texts:
        raise _no_values(key, override.get_value_string())
    return CategoricalDistribution(texts)


def _interval(key: str, interval: IntervalSweep) -> BaseDistribution:
    low, high, is_log = interval.start, interval.end, "log" in interval.tags
    assert low is not None and high is not None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(key, f"interval({low}, {high}) is empty", remedy="give the lower end first")
    if is_log and low <= 0:
        raise ConfigError(key, f"tag(log, interval({low}, {high})) has no logarithm", remedy="begin above 0")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=is_log)
    return FloatDistribution(low, high, log=is_log)


def _range(key: str, override: Override, span: RangeSweep) -> BaseDistribution:
    """Return a distribution over the values of Hydra's range, which does not include its end."""
    values = swept_values(key, override)
    if not values:
        raise _no_values(key, f"range({span.start}, {span.stop})")
    kind: Any = IntDistribution if isinstance(values, range) else FloatDistribution
    if kind is FloatDistribution and len(values) > MAX_JOBS:
        raise ConfigError(key, f"{override.get_value_string()} has more than {MAX_JOBS:,} values")
    low, high = sorted((values[0], values[-1]))
    return kind(low, high, step=abs(span.step))


def _no_values(key: str, text: str) -> ConfigError:
    return ConfigError(key, f"{text} holds no value, so there is nothing to search")


def _list_values(key: str, distribution: Any) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    step = distribution.step
    if step is None or distribution.log:
        remedy = ": write choice(0.1, 0.01) or range(1, 9), or choose another hydra/sweeper/sampler"
        message = "the grid sampler needs values that can be listed"
        raise ConfigError(key.lstrip("+"), message, remedy=remedy)
    count = round((distribution.high - distribution.low) / step) + 1
    return [distribution.low + n * step for n in range(count)]
