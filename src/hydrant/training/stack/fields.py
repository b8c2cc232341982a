"""The numbers of a param group by the names of their fields, such as `lr` or `betas.0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat_numbers(group: Mapping[str, Any], kinds: tuple[type, ...] = (float,)) -> dict[str, Any]:
    """Return the numbers of a param group, as `lr` or `betas.0`."""
    numbers = dict[str, Any]()
    for key, value in group.items():
        if type(value) in kinds:
            numbers[key] = value
        elif isinstance(value, tuple | list) and key != "params":
            numbers |= {f"{key}.{n}": item for n, item in enumerate(value) if type(item) in kinds}
    return numbers


def write_field(group: dict[str, Any], name: str, value: Any) -> None:
    """Write a field of a param group, such as `lr` or `betas.0`."""
    key, _, position = name.partition(".")
    if position:
        items = list(group[key])
        items[int(position)] = value
        group[key] = tuple(items)
    else:
        group[key] = value
