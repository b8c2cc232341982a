"""The config keys in which runs differ, without those that another key explains."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

from hydrant.compare.sources import Run
from hydrant.config.plain import is_free
from hydrant.errors import shown

_EXACT = 2.0**53
"""Below it, every whole number is a float."""


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """The keys that tell the runs apart: those that overrides set, and what else differs.

    Of the others those are left out that another one decides: `optimizer.betas` where every run of an `optimizer=` has
    the same. So is what decides nothing, such as the tracker.
    """
    begun = [
        run for run in runs if run.config and run.state != "missing"
    ]  # of others little more than overrides is known
    given = {key for run in runs for key in run.given}
    groups = set(_groups(begun))
    keys = given | {key for run in begun for key in run.config}
    kept: list[str] = []
    for key in sorted(keys, key=lambda key: (key not in given, key not in groups, key)):
        values = {_text(run, key) for run in (runs if key in given else begun) if run.config}
        if len(values) < 2 or is_free(key):
            continue
        if key in given or not any(_decides(begun, other, key) for other in kept):
            kept.append(key)
    return sorted(kept, key=lambda key: (key == "seed", "." in key, key))


def label(run: Run, key: str) -> str:
    """What a run has under a key, as it is written in a config; "-" where it has no such key."""
    return as_text(run.config[key]) if key in run.config else "-"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else shown(_alike(value))


def means(text: str, known: str) -> bool:
    """Whether a text of the command line means a label: it is the same, or the same number.

    >>> means("1e-3", "0.001"), means("adamw", "adamw"), means("1", "10")
    (True, True, False)
    """
    with suppress(ValueError):
        return text == known or float(text) == float(known)
    return False


def _text(run: Run, key: str) -> str:
    return json.dumps(_alike(run.config[key]), sort_keys=True, default=str) if key in run.config else ""


def _alike(value: Any) -> Any:
    """A value as every source has it: W&B makes 1 of 1.0.

    >>> _alike([1.0, 0.5, 1e30, 10**30, True])
    [1, 0.5, 1e+30, 1e+30, True]
    """
    match value:
        case bool():
            return value
        case int() | float():
            is_whole = abs(value) < _EXACT and float(value).is_integer()
            return int(value) if is_whole else float(value)
        case list():
            return [_alike(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _groups(runs: Sequence[Run]) -> Iterator[str]:
    """The config groups, whose options decide other keys."""
    for run in runs:
        tops = {key.partition(".")[0] for key in run.config if "." in key}
        yield from (key for key in run.config if key in tops or "@" in key or key in ("experiment", "debug"))


def _decides(runs: Sequence[Run], key: str, other: str) -> bool:
    """Whether all runs that have the same under `key` have the same under `other`."""
    seen: dict[str, str] = {}
    return all(seen.setdefault(_text(run, key), _text(run, other)) == _text(run, other) for run in runs)


def spread(values: Sequence[Any]) -> list[Any]:
    """Distinct values in their natural order: numbers by size, then texts.

    >>> spread(["b", 10, 9.5, "a", 10])
    [9.5, 10, 'a', 'b']
    """
    numbers = {v for v in values if isinstance(v, int | float) and not isinstance(v, bool)}
    texts = {as_text(v) for v in values if not isinstance(v, int | float) or isinstance(v, bool)}
    return [*sorted(numbers), *sorted(texts)]
