"""Reading run folders: what was run, how it ended; the plan of a sweep and its table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hydrant.errors import JobFailed, RecordError, first_line
from hydrant.locking import is_held
from hydrant.trackers.record import METRICS, read_summary, write_json


@dataclass(frozen=True)
class RunFolder:
    """What a run folder tells."""

    path: Path
    choices: dict[str, str]  # its own overrides, e.g. {"optimizer": "adamw", "optimizer.lr": "0.1"}
    summary: dict[str, Any]

    @property
    def changed(self) -> float:
        """When its summary was last written, in unix seconds; 0 if there is none."""
        return _written(self.path / "summary.json")

    @property
    def moved(self) -> float:
        """When its summary or its metrics were last written, in unix seconds."""
        return max(self.changed, _written(self.path / METRICS))

    @property
    def has_begun(self) -> bool:
        return bool(self.summary)

    @property
    def status(self) -> str:
        return status_of(self.summary)

    @property
    def state(self) -> str:
        """The status, but of a run that says it is running: `killed` where no process of its machine has its folder.

        On another machine than that it is `running elsewhere`, for nobody knows.
        """
        if self.status != "running" or is_held(self.path):
            return self.status
        return "killed" if self.summary.get("host") in (None, platform.node()) else "running elsewhere"

    @property
    def error(self) -> str:
        return (self.summary.get("error") or {}).get("message", "")


def status_of(summary: Mapping[str, Any]) -> str:
    """The status of a run; one that its study ended early is told apart from others that are finished."""
    status = str(summary.get("status", "not started"))
    return "pruned" if status == "finished" and summary.get("pruned") else status


def figures(summary: Mapping[str, Any]) -> str:
    """How fast a run was, in how much memory, and what was compiled for it; "" where none is known."""
    perf, compiled = summary.get("perf") or {}, summary.get("compile") or {}
    rate, memory = perf.get("updates_per_second"), perf.get("peak_memory_gib")
    told = [] if rate is None else [f"{rate:.4g} updates/s"]
    told += [] if memory is None else [f"{memory:.2f} GiB at most"]
    if compiled.get("graphs"):
        for key in ("graphs", "graph_breaks", "recompiles"):
            word = key.replace("_", " ")
            told.append(f"{compiled[key]} {word if compiled[key] != 1 else word.removesuffix('s')}")
        told.append(f"{compiled['seconds']:.1f} s to compile")
    return ", ".join(told)


def read_run(path: Path) -> RunFolder:
    """Read a run folder; one that never got as far as its summary is `not started`, or else `damaged`."""
    overrides = list[str]()
    try:
        overrides = overrides_of(path)
        summary = read_summary(path)
    except RecordError as error:
        summary = {"status": "damaged", "error": {"message": str(error)}}
    return RunFolder(path, choices_in(overrides), summary)


def overrides_of(path: Path) -> list[str]:
    """The overrides with which a run was started.

    Raises:
        RecordError: they are damaged.
    """
    return [str(word) for word in _yaml(path / ".hydra" / "overrides.yaml", list)]


def config_of(path: Path) -> dict[str, Any]:
    """The resolved config of a run; empty where it never had one.

    Raises:
        RecordError: it is damaged.
    """
    return _yaml(path / "config.yaml", dict)


def options_of(path: Path) -> dict[str, str]:
    """Which option of each config group a run has.

    Raises:
        RecordError: its record is damaged.
    """
    file = path / ".hydra" / "hydra.yaml"
    recorded = _yaml(file, dict)
    try:
        return recorded["hydra"]["runtime"]["choices"] if recorded else {}
    except (KeyError, TypeError) as error:
        raise RecordError(f"{file} is damaged (it has no hydra.runtime.choices)") from error


def choices_in(overrides: Iterable[str]) -> dict[str, str]:
    """What overrides choose, by key.

    >>> choices_in(["optimizer=adamw", "+scheduler@schedules.weight_decay=linear"])
    {'optimizer': 'adamw', 'scheduler@schedules.weight_decay': 'linear'}
    """
    parts = (override.lstrip("+~").partition("=") for override in overrides)
    return {key: value for key, _, value in parts}


def mark_failed(folder: Path, message: str, kind: str = JobFailed.__name__) -> None:
    """Say in its summary that a run failed which could not say so itself."""
    _mark(folder, "failed", {"type": kind, "message": message})


def mark_preempted(folder: Path) -> None:
    """Say in its summary that a run was stopped which took that for a failure."""
    _mark(folder, "preempted", None)


def _mark(folder: Path, status: str, error: dict[str, str] | None) -> None:
    try:
        known = read_summary(folder)
    except RecordError:
        known = {}
    summary = {"num_updates": 0} | known | {"status": status, "error": error}
    write_json(folder / "summary.json", summary)


def runs_of_sweep(folder: Path) -> list[RunFolder]:
    """The runs in the folder of a sweep, by name."""
    if not folder.is_dir():
        return []
    return [read_run(p) for p in sorted(folder.iterdir()) if (p / ".hydra").is_dir()]


@dataclass(frozen=True)
class Planned:
    """A job of a sweep, from before it starts."""

    folder: Path
    overrides: Sequence[str]
    refused: str = ""  # why it could not run where it was to


@dataclass(frozen=True)
class Plan:
    """What a sweep is to do."""

    began: float  # the last command, in unix seconds
    jobs: Sequence[Planned]  # in their order


def write_plan(sweep: Path, plan: Plan) -> None:
    """`sweep.json`; without secrets."""
    root = sweep.resolve()
    jobs = [
        {
            "run": os.path.relpath(job.folder.resolve(), root),
            "overrides": list(job.overrides),
            "refused": job.refused or None,
        }
        for job in plan.jobs
    ]
    write_json(sweep / "sweep.json", {"began": plan.began, "jobs": jobs})


def read_plan(sweep: Path) -> Plan:
    """What the last command of a sweep was to do; nothing where there was none.

    Raises:
        RecordError: it is damaged.
    """
    file = sweep / "sweep.json"
    if not file.exists():
        return Plan(0.0, [])
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        jobs = [Planned(sweep / job["run"], job["overrides"], job["refused"] or "") for job in told["jobs"]]
        return Plan(told["began"], jobs)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{file} is damaged ({first_line(error)}); the same command writes it again"
        ) from error


def _written(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


def _yaml(file: Path, kind: type[_Kind]) -> _Kind:
    """What a YAML file says, empty where there is none.

    Raises:
        RecordError: it is damaged.
    """
    try:
        found = yaml.load(file.read_text(encoding="utf-8"), _Loader) if file.exists() else None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecordError(f"{file} is damaged ({first_line(error)})") from error
    if not isinstance(found, kind | None):
        raise RecordError(f"{file} is damaged (it is no {kind.__name__})")
    return found or kind()


_Kind = TypeVar("_Kind", list[Any], dict[str, Any])
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # with libyaml ten times as fast
