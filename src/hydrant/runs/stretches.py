"""The stretches of a run that continued with another config: which values trained which of its updates."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.config.flat import differences, is_after_training, is_idle_interval, values_by_key
from hydrant.files.redaction import redacted
from hydrant.runs.record import History
from hydrant.runs.resume import saved_config


def stretches_of(config: Mapping[str, Any], history: History) -> list[dict[str, Any]]:
    """Return the stretches of a run that continues with this config; none if one config trains all its updates.

    Each has the keys that differ between the stretches, with its values. The last one has no end.

    Raises:
        ConfigError: the config of the run that continues cannot be read.
        RecordError: its summary is damaged.
    """
    if not history.num_updates:
        return []
    recorded = history.run.recorded.get("stretches") or []
    saved, here = saved_config(history.run, "resume"), redacted(config)
    before, now = values_by_key(saved), values_by_key(here)
    changed = (key for key in differences(saved, here) if not is_after_training(key))
    keys = {key for key in changed if not (is_idle_interval(key, before) and is_idle_interval(key, now))}
    keys |= {key for stretch in recorded for key in stretch["config"]}
    # What a stretch does not record is in the saved config, because it has not changed until now.
    parts = [
        (stretch["begin"], {key: stretch["config"].get(key, before.get(key)) for key in keys})
        for stretch in recorded or [{"begin": 0, "end": None, "config": {}}]
        if stretch["begin"] < history.num_updates  # else no update of this config is left
    ]
    return _joined([*parts, (history.num_updates, {key: now.get(key) for key in keys})])


def _joined(parts: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the stretches that begin at these updates; those that follow each other with the same values as one."""
    distinct = [part for n, part in enumerate(parts) if n == 0 or part[1] != parts[n - 1][1]]
    if len(distinct) == 1:
        return []
    first = distinct[0][1]
    keys = [key for key in sorted(first) if any(values[key] != first[key] for _, values in distinct)]
    ends = [*(begin for begin, _ in distinct[1:]), None]
    return [
        {"begin": begin, "end": end, "config": {key: values[key] for key in keys}}
        for (begin, values), end in zip(distinct, ends, strict=True)
    ]
