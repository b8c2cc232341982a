"""The config keys in which runs differ, without those that another key explains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hydrant.compare.sources import Run
from hydrant.config.plain import is_free
from hydrant.errors import shown


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """The keys that tell the runs apart: those that an override or a choice of a group set, and what else differs.

    What another of these decides is left out: `optimizer.betas` where every run of an `optimizer=` has the same. So is
    what decides nothing, such as the tracker.
    """
    configured = [run for run in runs if run.config]
    keys = {key: None for run in configured for key in run.config}
    differing = [
        key for key in keys if not _decides_nothing(key) and len({_text(r, key) for r in configured}) > 1
    ]
    chosen = {key for run in configured for key in run.given} | {
        k for k in differing if _is_choice(configured, k)
    }
    kept = [key for key in differing if key in chosen]
    kept += [
        key for key in differing if key not in chosen and not any(_decides(configured, k, key) for k in kept)
    ]
    return sorted(kept, key=lambda key: (key == "seed", "." in key, key))


def label(run: Run, key: str) -> str:
    """What a run has under a key, as it is written in a config; "-" where it has no such key."""
    return as_text(run.config[key]) if key in run.config else "-"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _text(run: Run, key: str) -> str:
    return json.dumps(run.config[key], sort_keys=True, default=str) if key in run.config else ""


def _decides_nothing(key: str) -> bool:
    return is_free(key) or is_free(f"{key}.")


def _is_choice(runs: Sequence[Run], key: str) -> bool:
    """Whether a key is a config group, whose option decides other keys."""
    below = f"{key}."
    return any(other.startswith(below) for run in runs for other in run.config) or key in (
        "experiment",
        "debug",
    )


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
