"""Read run folders. A reader that is kept reads only the files that have changed since, and the new rows of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydrant.commands.compare.run import Run
from hydrant.commands.compare.series import last_logged, read_schedules, series_by_metric
from hydrant.config.flat import flatten, group_choices
from hydrant.errors import RecordError
from hydrant.runs.added_keys import flat_with_added_keys
from hydrant.runs.folder import (
    CONFIG,
    HYDRA,
    HYDRA_OVERRIDES,
    HYDRA_SETTINGS,
    METRICS,
    SCHEDULE_VALUES,
    SUMMARY,
    SWEEP_PLAN,
    RunFolder,
    RunStatus,
    read_options,
)
from hydrant.runs.rows import GrowingRows
from hydrant.terminal.console import relative

Stamp = tuple[int, int, int] | None
"""When a file was last written, its size and its inode; None if there is none."""

_SETTINGS = (CONFIG, f"{HYDRA}/{HYDRA_OVERRIDES}", f"{HYDRA}/{HYDRA_SETTINGS}")
_CHANGING = (SUMMARY, METRICS, SCHEDULE_VALUES)


def stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class RunReader:
    """Reads runs, each file again only if it has changed."""

    def __init__(self) -> None:
        self._entries: dict[Path, _Entry] = {}

    def read(self, folder: Path) -> Run:
        """Return the run of a folder: the same object as before if nothing has changed."""
        entry = self._entries.setdefault(folder, _Entry(folder))
        entry.update()
        return entry.run


@dataclass
class _Entry:
    """What is known of a run folder."""

    folder: Path
    settings: Sequence[Stamp] = ()
    changing: Sequence[Stamp] = ()
    saved: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the flat config, with the options
    record: RunFolder = field(init=False)
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        self._rows, self._damage = GrowingRows(self.folder / METRICS), ""

    def update(self) -> None:
        settings = [stamp(self.folder / name) for name in _SETTINGS]
        changing = [stamp(self.folder / name) for name in _CHANGING]
        if settings == self.settings and changing == self.changing:
            if self.run.state != RunStatus.DAMAGED and self.run.state != self.record.state:  # of its lock
                self.run = replace(self.run, state=self.record.state)
            return
        self.record = RunFolder(self.folder)
        if settings != self.settings:
            self._damage = self._read_settings()
        self.settings, self.changing = settings, changing
        self.run = self._read_run()

    def _read_settings(self) -> str:
        """Read config and options. Return why they cannot be read; "" if they can."""
        try:
            saved, options = flatten(self.record.config), read_options(self.folder)
        except RecordError as error:
            return str(error)
        self.saved = (flat_with_added_keys(saved) if saved else {}) | group_choices(options)
        return ""

    def _read_run(self) -> Run:
        name, record = relative(self.folder.resolve()), self.record
        if self._damage:
            return Run(name, RunStatus.DAMAGED, {}, {}, {}, error=self._damage, folder=self.folder)
        config = self.saved or dict(record.choices)  # a run that failed early has no config
        has_own_name = not (self.folder.resolve().parent / SWEEP_PLAN).exists()
        facts = record.state, config, record.choices, record.summary
        run = Run(name, *facts, error=record.error, has_own_name=has_own_name, folder=self.folder)
        try:
            rows, schedules = self._rows.read(), read_schedules(self.folder / SCHEDULE_VALUES)
            series = series_by_metric(rows)
            return replace(run, series=series, schedules=schedules, last_logged=last_logged(rows))
        except RecordError as error:
            return replace(run, state=RunStatus.DAMAGED, error=str(error))
