"""Complete an offline part by the rows that wandb-core had not written when it was killed: metrics.jsonl has them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.commands.sync.wandb_files import each_record
from hydrant.errors import RecordError
from hydrant.runs.folder import read_metrics
from hydrant.terminal.console import notice

_BESTS: Mapping[str, Callable[[float, float], float]] = {"min": min, "max": max}
"""What the summary holds of some metrics besides the last value, as the tracker defines it."""


def completed(records: Sequence[Any], part: Path, folder: Path) -> list[Any]:
    """Return the records of a part, with the rows of metrics.jsonl that its process logged and the part lacks.

    A row belongs to the newest part that had begun when the row was logged. Rows that a resumed run has made again are
    not in metrics.jsonl twice, so they are not added.
    """
    try:
        rows = _missing_rows(records, part, folder)
    except RecordError as error:
        notice(f"{error}; rows that a killed run has not written for W&B are not added")
        rows = []
    run_end = next((n for n, record in enumerate(records) if record.HasField("exit")), len(records))
    return [*records[:run_end], *_added(rows, records), *records[run_end:]]


def _missing_rows(records: Sequence[Any], part: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that a part lacks.

    Raises:
        RecordError: metrics.jsonl or another part is damaged.
    """
    others = [other for other in folder.glob("wandb/*run-*/run-*.wandb") if other != part]  # online ones too
    begins = [_begin(each_record(other)) for other in others]
    begin = _begin(records)
    end = min((other for other in begins if other > begin), default=math.inf)
    items = [item for record in records for item in record.history.item]
    logged = {json.loads(item.value_json) for item in items if "time" in (item.key, *item.nested_key)}
    rows = [row for row in read_metrics(folder) if row.get("time") is not None]
    return [row for row in rows if begin <= row["time"] < end and row["time"] not in logged]


def _begin(records: Iterable[Any]) -> float:
    """Return when the process of a part began to log, in unix seconds; infinity if it wrote nothing."""
    starts = (record.run.start_time for record in records if record.HasField("run"))
    return next((start.seconds + start.nanos / 1e9 for start in starts), math.inf)


def _added(rows: Sequence[Mapping[str, Any]], records: Sequence[Any]) -> Iterator[Any]:
    """Yield the records that wandb-core makes of rows which follow those of a part: a summary and history for each."""
    from wandb.proto import wandb_internal_pb2

    first, begin = sum(record.HasField("history") for record in records), _begin(records)
    latest = {
        item.nested_key[0]: json.loads(item.value_json)
        for record in records
        for item in record.summary.update
        if len(item.nested_key) == 1
    }
    for step, row in enumerate(rows, first):
        values = {key: math.nan if value is None else value for key, value in row.items()}
        values |= {"_step": step, "_timestamp": row["time"], "_runtime": row["time"] - begin}
        latest |= {key: _summarized(value, latest.get(key)) for key, value in values.items()}
        summary, history = (wandb_internal_pb2.Record() for _ in range(2))  # type: ignore[attr-defined]
        for key, value in values.items():
            summary.summary.update.add(nested_key=[key], value_json=json.dumps(latest[key]))
            history.history.item.add(nested_key=[key], value_json=json.dumps(value))
        history.history.step.num = step
        yield from (summary, history)


def _summarized(value: float, before: dict[str, float] | float | None) -> dict[str, float] | float:
    """Return what the summary holds of a metric after a value: the value, or a dict with the best one too."""
    if not isinstance(before, dict):
        return value
    values = {"last": value} | {
        name: best(before[name], value) for name, best in _BESTS.items() if name in before
    }
    return {name: values[name] for name in before}
