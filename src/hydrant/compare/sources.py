"""Where runs are read: every kind of source gives the same plain `Run`."""

from __future__ import annotations

import glob
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hydrant.compare.series import FloatArray, Series, by_metric, last_logged, read_schedules
from hydrant.config.plain import choices_of, flatten
from hydrant.errors import ConfigError, RecordError, suggestion
from hydrant.job import relative
from hydrant.runs import choices_in, config_of, options_of, read_plan, read_run
from hydrant.trackers.record import read_metrics

WANDB = "wandb:"
"""What words of the command line begin with that name runs of Weights & Biases, and the names of such runs."""

REPEAT = "repeat"
"""The state of a run that does the same job as another one, which counts."""


@dataclass(frozen=True)
class Run:
    """A run as it is compared, wherever it was read."""

    name: str  # unique among those compared
    state: str  # finished, failed, preempted, running, not started, missing, repeat, ...
    config: Mapping[str, Any]  # dotted keys, and the option of each config group
    given: Mapping[str, str]  # its own overrides, as they were written
    summary: Mapping[str, Any]
    series: Mapping[str, Series] = field(default_factory=dict[str, Series])
    schedules: Mapping[str, Series] = field(default_factory=dict[str, Series])  # by the names in its metrics
    error: str = ""
    title: str = ""  # what it is called where that tells it from the others; else its folder's name
    is_read_twice: bool = False  # in W&B too
    logged: float = 0.0  # when its last row was, in unix seconds
    repeats: str = ""  # the run that counts for the same job

    @property
    def samples_per_update(self) -> int | None:
        return self.config.get("global_batch_size")

    @property
    def wandb_id(self) -> str | None:
        return (self.summary.get("wandb") or {}).get("id")

    def seconds(self, updates: FloatArray) -> FloatArray:
        """The seconds of training until after so many updates; NaN where the run does not say."""
        pace = self.series.get("perf/updates_per_second")
        if pace is None:
            return np.full(len(updates), np.nan)
        spans = np.diff(pace.updates, prepend=0.0)
        known = np.concatenate(([0.0], pace.updates)), np.concatenate(([0.0], np.cumsum(spans / pace.values)))
        return np.interp(updates, *known)


class Source(Protocol):
    """Runs that a word of the command line names."""

    def runs(self) -> Sequence[Run]:
        """Read them.

        Raises:
            ConfigError: there are none.
        """
        ...


@dataclass(frozen=True)
class Folders:
    """A run folder, a folder with such below it (a sweep), or a glob of them."""

    word: str

    def runs(self) -> Sequence[Run]:
        # Path.glob takes no absolute patterns.
        found = [Path(p) for p in sorted(glob.glob(self.word, recursive=True))]  # noqa: PTH207
        if not found:
            raise ConfigError("RUNS", f"{self.word!r} is no folder{_hint(Path(self.word))}")
        return [run for path in found for run in _below(path)]


def read_runs(words: Sequence[str]) -> list[Run]:
    """The runs that the words name, each once.

    Raises:
        ConfigError: a word names nothing, or there are no runs at all.
    """
    if not words:
        raise ConfigError("RUNS", "give run folders, sweeps or globs: hydrant compare multirun/lr_study")
    runs = {run.name: run for word in words for run in _source(word).runs()}
    if not runs:
        raise ConfigError("RUNS", f"no runs found in {', '.join(words)}; a run's folder holds config.yaml")
    return _shortened(_without_copies(list(runs.values())))


def _source(word: str) -> Source:
    """What reads a word."""
    if not word.startswith(WANDB):
        return Folders(word)
    from hydrant.compare.wandb_source import WandbRuns  # brings in wandb

    return WandbRuns(word)


def _without_copies(runs: Sequence[Run]) -> list[Run]:
    """The runs without those of W&B that a folder holds too, which is whole and exact."""
    remote = {run.wandb_id: run for run in runs if run.name.startswith(WANDB)}
    folders = {run.wandb_id for run in runs if not run.name.startswith(WANDB)}
    kept: list[Run] = []
    for run in runs:
        if not run.name.startswith(WANDB) and run.wandb_id in remote:
            there = {"wandb": remote[run.wandb_id].summary["wandb"]}  # it may have been uploaded later
            kept.append(replace(run, is_read_twice=True, summary={**run.summary, **there}))
        elif not run.name.startswith(WANDB) or run.wandb_id not in folders:
            kept.append(run)
    return kept


def _hint(path: Path) -> str:
    """The names beside the one that is not there."""
    parent = path.parent
    names = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    return suggestion(path.name, names, f"Folders in {parent}") if names else ""


def _below(path: Path) -> list[Run]:
    """The run that a folder is, or the runs below it, with those of a sweep that were never started."""
    if not path.is_dir():  # such as the sweep.csv that a glob finds too
        return []
    if (path / "config.yaml").exists() or (path / ".hydra").is_dir():
        return [_read(path)]
    folders = [below for below in sorted(path.iterdir()) if below.is_dir() and not _is_aside(below)]
    runs = [run for folder in folders for run in _below(folder)]
    return runs + _missing(path, runs) if (path / "sweep.json").exists() else runs


def _is_aside(folder: Path) -> bool:
    """Whether a folder holds no runs of its own: it is hidden, or a link to another one."""
    return folder.name.startswith(".") or folder.is_symlink()


def _missing(sweep: Path, runs: Sequence[Run]) -> list[Run]:
    """The jobs of a sweep's last command that have no folder, with what is known of their configs."""
    begun = {run.name for run in runs}
    try:
        jobs = read_plan(sweep).jobs
    except RecordError as error:
        print(f"{error}; until then nothing tells which jobs are missing", file=sys.stderr)
        return []
    planned = {relative(job.folder.resolve()): choices_in(job.overrides) for job in jobs}
    common = _common([run.config for run in runs])
    return [
        Run(
            name=name,
            state="missing",
            config=common | {key: _meant(key, text, runs) for key, text in job.items() if key != "name"},
            given=job,
            summary={},
        )
        for name, job in planned.items()
        if name not in begun
    ]


def _common(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all configs have."""
    first = configs[0] if configs else {}
    return {k: v for k, v in first.items() if all(k in other and other[k] == v for other in configs)}


def _meant(key: str, text: str, runs: Sequence[Run]) -> Any:
    """The value that an override gave other runs of the sweep; else what it says, as a number if it is one."""
    known = (run.config[key] for run in runs if run.given.get(key) == text and key in run.config)
    try:
        return next(known, int(text) if text.isdigit() else float(text))
    except ValueError:
        return next(known, text)


def _read(folder: Path) -> Run:
    name = relative(folder.resolve())
    try:
        found, config = read_run(folder), flatten(config_of(folder)) | choices_of(options_of(folder))
    except RecordError as error:
        return Run(name, "damaged", {}, {}, {}, error=str(error))
    config = config or dict(found.choices)  # it never got as far as its config
    run = Run(name, found.state, config, found.choices, found.summary, error=found.error)
    try:
        rows = read_metrics(folder)
        schedules = read_schedules(folder / "schedule.json")
        return replace(run, series=by_metric(rows), schedules=schedules, logged=last_logged(rows))
    except RecordError as error:
        return replace(run, state="damaged", error=str(error))


def _shortened(runs: list[Run]) -> list[Run]:
    """The runs under their folders' names, where these tell them apart."""
    short = [run.title or Path(run.name).name for run in runs]
    if len(set(short)) < len(runs):
        return runs
    return [replace(run, name=name) for run, name in zip(runs, short, strict=True)]
