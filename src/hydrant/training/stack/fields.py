"""The numbers of a param group by the names of their fields, such as `lr` or `betas.0`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.optimizers.scheduled_fields import ScheduledField
from hydrant.training.stack.distinct import distinct


class StackedField:
    """A scheduled field of all lanes. Each schedule that lanes share is computed once for all of them."""

    def __init__(self, fields: Sequence[ScheduledField]) -> None:
        first_lanes, places = distinct([id(field.ratio) for field in fields])
        self._ratios = [fields[n].ratio for n in first_lanes]
        self._lanes = [(field.base, place) for field, place in zip(fields, places, strict=True)]
        self._last: list[float] | None = None  # of `_ratios`
        self._values: list[float] = []

    def __call__(self, update: int) -> Sequence[float]:
        """Return the value of each lane in an update."""
        ratios = [ratio(update) for ratio in self._ratios]
        if ratios != self._last:
            self._last = ratios
            values = [base * ratios[place] for base, place in self._lanes]
            # A user's function may return a number of numpy.
            self._values = values if all(type(r) is float for r in ratios) else list(map(float, values))
        return self._values


def flat_numbers(group: Mapping[str, Any], kinds: tuple[type, ...] = (float,)) -> dict[str, Any]:
    """Return the numbers of a param group, as `lr` or `betas.0`."""
    numbers = dict[str, Any]()
    for key, value in group.items():
        if type(value) in kinds:
            numbers[key] = value
        elif isinstance(value, tuple | list) and key != "params":
            numbers |= {f"{key}.{n}": item for n, item in enumerate(value) if type(item) in kinds}
    return numbers
