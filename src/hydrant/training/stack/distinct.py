"""Which lanes of a stack share what."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def distinct(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Return the position of the first of each group of equal keys, and for each key the number of its group.

    >>> distinct(["a", "b", "a"])
    ([0, 1], [0, 1, 0])
    """
    numbers = dict[Hashable, int]()
    groups = [numbers.setdefault(key, len(numbers)) for key in keys]
    return [groups.index(number) for number in range(len(numbers))], groups
