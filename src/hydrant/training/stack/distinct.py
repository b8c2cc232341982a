"""Which lanes of a stack share what."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def distinct(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Return the position of the first of each group of equal keys, and for each key the number of its group.

    >>> distinct(["a", "b", "a"])
    ([0, 1], [0, 1, 0])
    """
    first = dict[Hashable, int]()
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    numbers = {key: number for number, key in enumerate(first)}
    return list(first.values()), [numbers[key] for key in keys]
