"""Pack curves, so that a page of many runs is small."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any


def packed(curves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the curves with each list of updates in one place, under `grids`, because most curves share one.

    Whole updates are stored by their distances, which compress well.

    >>> packed({"a": {"u": [0, 10, 20], "v": [1]}, "b": [{"u": [0, 10, 20], "v": [2]}]})["grids"]
    [{'steps': [0, 10, 10]}]
    """
    grids: dict[tuple[float, ...], int] = {}

    def pack(value: Any) -> Any:
        match value:
            case {"u": updates}:
                return {**value, "u": grids.setdefault(tuple(updates), len(grids))}
            case dict():
                return {key: pack(item) for key, item in value.items()}
            case list() if value and not isinstance(value[0], (int, float, str)):
                return [pack(item) for item in value]
            case _:
                return value

    content = pack(dict(curves))
    return {**content, "grids": [_grid(updates) for updates in grids]}


def _grid(updates: tuple[float, ...]) -> dict[str, list[float]]:
    if all(isinstance(update, int) for update in updates):
        return {"steps": [b - a for a, b in itertools.pairwise((0, *updates))]}
    return {"places": list(updates)}
