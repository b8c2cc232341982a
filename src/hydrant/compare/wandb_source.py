"""Runs in Weights & Biases, by its public API: the same plain `Run`s that their folders give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from hydrant.compare.keys import label, means
from hydrant.compare.series import by_metric, last_logged
from hydrant.compare.sources import WANDB, Run
from hydrant.config.plain import flatten
from hydrant.errors import ConfigError, first_line, unknown_name
from hydrant.runs import choices_in, status_of
from hydrant.trackers.wandb_access import impatient, obstacle, own_service

FIELDS = {
    "group": "group",
    "job_type": "jobType",
    "name": "displayName",
    "state": "state",
    "sweep": "sweep",
    "tag": "tags",
}
"""What a filter may ask of the runs themselves, and what W&B calls it; anything else is a key of their config."""

_STATES = {"preempting": "preempted", "pending": "not started"}
"""W&B's states under our names, where they differ."""

_PROBE_SECONDS = 10.0
_NUM_THREADS = 8  # that fetch histories


@dataclass(frozen=True)
class WandbRuns:
    """`wandb:entity/project`, all its runs; `.../run` one, `...?group=a,b&optimizer=adamw` those that match."""

    word: str

    def runs(self) -> Sequence[Run]:
        entity, project, run_id, wanted = self._parts()
        impatient()
        with own_service():
            refusal = obstacle(_PROBE_SECONDS)
            if refusal is not None:
                raise self._error(f"{refusal}; log in with `wandb login`, or give run folders")
            try:
                found = self._fetch(f"{entity}/{project}", run_id, _on_server(wanted))
            except ConfigError:
                raise
            except Exception as error:  # the SDK lets out its own errors, pydantic's and the socket's
                raise self._error(f"W&B cannot be read ({first_line(error)}); give run folders") from error
        return self._matching(found, wanted)

    def _parts(self) -> tuple[str, str, str, dict[str, list[str]]]:
        path, _, query = self.word.removeprefix(WANDB).partition("?")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if len(parts) == 4 and parts[2] == "runs":  # as in the address of its page
            del parts[2]
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise self._error(
                "write wandb:entity/project, wandb:entity/project/run or wandb:...?group=lr_study"
            )
        wanted: dict[str, list[str]] = {}
        for condition in filter(None, query.split("&")):
            key, equals, values = condition.partition("=")
            if not equals:
                raise self._error(f"{condition!r} gives no value; write ?group=lr_study&optimizer=adamw,sgd")
            wanted[unquote(key)] = [unquote(value) for value in values.split(",")]
        return parts[0], parts[1], "".join(parts[2:]), wanted

    def _fetch(self, path: str, run_id: str, filters: Mapping[str, Any]) -> list[Run]:
        import wandb

        if run_id:
            filters = {"$and": [{"name": run_id}, filters]}
        try:
            found = list(wandb.Api().runs(path, filters=dict(filters), per_page=200, lazy=False))
        except ValueError as error:
            raise self._error(
                f"W&B has no project {path} that this account may see; check the name"
            ) from error
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            return list(pool.map(_read, found))

    def _matching(self, runs: Sequence[Run], wanted: Mapping[str, Sequence[str]]) -> list[Run]:
        """The runs with the wanted config: asked here, since W&B takes the dots in our keys for levels."""
        known = {key for run in runs for key in run.config}
        keys = [key for key in wanted if key not in FIELDS]
        for key in keys:
            if runs and key not in known:
                raise self._error(unknown_name("", "key", key, known | FIELDS.keys()).reason)
        matching = [run for run in runs if all(_has(run, key, wanted[key]) for key in keys)]
        if not matching:
            raise self._error("no such runs; leave out a part of the filter to see which there are")
        return matching

    def _error(self, told: str) -> ConfigError:
        return ConfigError("RUNS", f"{self.word!r}: {told}")


def _on_server(wanted: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {FIELDS[key]: {"$in": list(values)} for key, values in wanted.items() if key in FIELDS}


def _has(run: Run, key: str, texts: Sequence[str]) -> bool:
    """Whether a run has one of these under a key: as it is written, or as a number that is written otherwise."""
    return any(means(text, label(run, key)) for text in texts)


def _read(found: Any) -> Run:
    """A run of the SDK, with all rows of its history."""
    config = flatten(found.config)
    given = choices_in(config.pop("overrides", []))
    told: dict[str, Any] = found.summary_metrics.get("hydrant") or {}
    path = "/".join(found.path)
    rows = _rows(found.scan_history())
    series = by_metric(rows)
    num_updates = max((int(own.updates[-1]) for own in series.values()), default=0)
    ended = told.get("status", found.state) if found.state == "failed" else found.state
    state = status_of({**told, "status": ended})
    return Run(
        name=f"{WANDB}{path}",
        state=_STATES.get(state, state),
        config=config,
        given=given,
        summary={
            "num_updates": num_updates,
            **told,
            "wandb": {"id": found.id, "mode": "online", "path": path},
        },
        series=series,
        logged=last_logged(rows),
        error=(told.get("error") or {}).get("message", ""),
        title=found.name or found.id,
    )


def _rows(history: Iterator[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as metrics.jsonl holds them: what a resumed run logged again is there once."""
    rows: list[dict[str, Any]] = []
    for row in history:
        values = {key: _number(value) for key, value in row.items() if "/" in key and _is_number(value)}
        if not values:  # a picture
            continue
        new = {"num_updates": row.get("num_updates", row["_step"]), "time": row.get("time"), **values}
        _cut(rows, new)
        rows.append(new)
    return rows


def _cut(rows: list[dict[str, Any]], new: Mapping[str, Any]) -> None:
    """Take away the rows that a run wrote before it went on from a checkpoint, if `new` is the first one after that.

    The same update may have several rows, such as one of training and one of evaluation; only all their rows have the
    figures of compiling.
    """
    own = {key for key in new if not key.startswith("compile/")} - {"num_updates", "time"}
    later = list(takewhile(lambda row: row["num_updates"] >= new["num_updates"], reversed(rows)))
    if any(row["num_updates"] > new["num_updates"] or not own.isdisjoint(row) for row in later):
        del rows[-len(later) :]


def _is_number(value: Any) -> bool:
    return (
        value in ("NaN", "Infinity", "-Infinity")
        if isinstance(value, str)
        else isinstance(value, int | float)
    )


def _number(value: Any) -> float | None:
    return value if math.isfinite(float(value)) else None
