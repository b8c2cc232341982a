"""The run folder: the names of its files, their content, and the status of its run. Imports no torch.

The names are constants here. A name that a lower package uses itself is a constant there: `checkpoints/` in
`training.checkpoint.folder`, and those of trackers in their extensions.
"""

import os
import platform
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, RecordError, quoted
from hydrant.files.on_disk import write_json
from hydrant.files.read_file import read_json, read_yaml
from hydrant.records import HydraSettings, SavedConfig, Summary
from hydrant.runs.lock import LEASE, is_held
from hydrant.terminal.text import format_metric, number
from hydrant.training.checkpoint.folder import checkpoints_of, newest_checkpoint

CONFIG = "config.yaml"  # the resolved config
HYDRA = ".hydra"  # Hydra's own record
HYDRA_CONFIG = "config.yaml"
HYDRA_SETTINGS = "hydra.yaml"
HYDRA_OVERRIDES = "overrides.yaml"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
HISTOGRAMS = "histograms.jsonl"
LOG = "train.log"
SCHEDULE_VALUES = "schedule.json"
SCHEDULE_PICTURE = "schedule.png"
CURVES_PICTURE = "curves.png"
COMPILE_REPORT = "compile_report.json"
PICTURES = "pictures"
TEXTS = "texts"
TABLES = "tables"
PROFILE = "profile"
EXPORT = "export"

STOPPED_BY_RULE = "stop_if: "
"""How the end reason of a run begins that is `stopped`, not finished."""
ROOTS = ("outputs", "multirun")
"""The parent folders of runs and sweeps whose folder is not given."""
_NUM_NEWEST = 6


SWEEP_PLAN = "sweep.json"  # in the folder of a sweep
SWEEP_LOCK = ".sweep.lock"  # of that file
SWEEP_TABLE = "sweep.csv"
SWEEP_PICTURE = "sweep.png"
SWEEP_CONFIG = "multirun.yaml"

REPLACED = (CONFIG, METRICS, HISTOGRAMS, SCHEDULE_VALUES, SCHEDULE_PICTURE, CURVES_PICTURE, COMPILE_REPORT, PICTURES,
            TEXTS, TABLES, PROFILE)  # fmt: skip
"""What a run replaces in its folder after its config is there."""
REPLACED_BY_SWEEP = (SWEEP_PLAN, SWEEP_TABLE, SWEEP_PICTURE, SWEEP_CONFIG)
"""What a sweep replaces in its folder, the plan first."""


class RunStatus(StrEnum):
    """The state of a run. summary.json records the first four; the others follow from the folder."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"

    PRUNED = "pruned"  # finished early, by the pruner of its study
    STOPPED = "stopped"  # ended early as hopeless, by hook=stop_if
    KILLED = "killed"  # `running` in the summary, but no process of this machine holds the folder
    RUNNING_ELSEWHERE = "running elsewhere"  # `running` on another machine, whose processes cannot be seen
    NOT_STARTED = "not started"  # without a summary
    STARTING = "starting"  # the same, or ended before, and a process of this machine holds the folder
    DAMAGED = "damaged"  # a file cannot be read
    REFUSED = "refused"  # the job of a sweep whose config was rejected
    MISSING = "missing"  # the job of a sweep without a folder
    QUEUED = "queued"  # the job of a sweep that will start


@dataclass(frozen=True)
class RunFolder:
    """What the folder of a run holds. Each file is read once, when it is first needed.

    Args:
        path: the folder.
        planned: the overrides of the run by the plan of its sweep; None: those that the folder records.
        refusal: why the run was refused: then the folder may hold an earlier one.
    """

    path: Path
    planned: Sequence[str] | None = None
    refusal: str = ""

    @cached_property
    def choices(self) -> dict[str, str]:
        """The overrides of the run, e.g. {"optimizer": "adamw", "optimizer.lr": "0.1"}."""
        try:
            return choices_in(read_overrides(self.path) if self.planned is None else self.planned)
        except RecordError:  # the summary says so
            return {}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary. One with the status `damaged` if a file cannot be read; empty if the run is not started."""
        if self.refusal:
            return {"status": RunStatus.REFUSED, "error": {"message": self.refusal}}
        try:
            read_overrides(self.path)
            return self.recorded
        except RecordError as error:
            return {"status": RunStatus.DAMAGED, "error": {"message": str(error)}}

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """The content of summary.json; empty if there is none.

        Raises:
            RecordError: the file is damaged.
        """
        remedy = "remove it, and the run continues from its checkpoints"
        return read_json(self.path / SUMMARY, dict[str, Any], remedy, Summary) or {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config; empty if there is none.

        Raises:
            RecordError: the file is damaged.
        """
        return read_yaml(self.path / CONFIG, dict[str, Any], fields=SavedConfig) or {}

    @property
    def checkpoints(self) -> Path:
        return checkpoints_of(self.path)

    @cached_property
    def newest_checkpoint(self) -> Path | None:
        return newest_checkpoint(self.checkpoints)

    @property
    def summary_time(self) -> float:
        """When the summary was last written, in unix seconds; 0 if there is none."""
        return modified(self.path / SUMMARY)

    @property
    def record_time(self) -> float:
        """When the summary or the metrics were last written, in unix seconds."""
        return max(self.summary_time, modified(self.path / METRICS))

    @property
    def has_begun(self) -> bool:
        return bool(self.summary)

    @property
    def status(self) -> str:
        """The recorded status."""
        return status_of(self.summary)

    @property
    def state(self) -> str:
        """The status, where `running` is checked: it is `killed` if no process of this machine holds the folder.

        A run of another machine cannot be checked from here; it is `running elsewhere`.
        """
        if self.status != RunStatus.RUNNING or is_held(self.path):
            return self.status
        is_here = self.summary.get("host") in (None, platform.node())
        return RunStatus.KILLED if is_here else RunStatus.RUNNING_ELSEWHERE

    @property
    def error(self) -> str:
        return (self.summary.get("error") or {}).get("message", "")


def is_run_folder(path: Path) -> bool:
    """Return whether a folder holds a config, or only Hydra's record because the run failed before it wrote one.

    A run that prepares its data and model has only the lease, as a sweep has before its plan.
    """
    is_starting = (path / LEASE).exists() and not (path / SWEEP_PLAN).exists()
    return (path / CONFIG).exists() or (path / HYDRA).is_dir() or is_starting


def newest_folders(example: str, *, with_sweeps: bool = True) -> str:
    """Return the end of a message that asks for a run or a sweep: the newest ones in this working folder, if any.

    Args:
        example: a command that ends with a folder. The newest folder replaces it.
        with_sweeps: whether the command takes sweeps too.
    """
    paths = [path for root in ROOTS for level in ("*", "*/*") for path in Path(root).glob(level)]
    folders = [p for p in paths if is_run_folder(p) or (with_sweeps and (p / SWEEP_PLAN).exists())]
    outer = [path for path in folders if path.parent not in folders]
    newest = [str(path) for path in sorted(outer, key=modified, reverse=True)[:_NUM_NEWEST]]
    if not newest:
        return f": {example}"
    command = f"{example.rpartition(' ')[0]} {shlex.quote(newest[0])}"
    return f": {command}" + (f". Others here: {', '.join(map(quoted, newest[1:]))}" if newest[1:] else "")


def named_run(command: str, words: Sequence[str]) -> str:
    """Return the run or the checkpoint that the first word of a command names.

    Raises:
        ConfigError: there is no such word.
    """
    from hydrant.config.command_line import is_override  # late, because it imports Hydra

    if words and not is_override(words[0]):
        return words[0]
    known = newest_folders(f"hydrant {command} outputs/first", with_sweeps=False)
    raise ConfigError("", f"{command} what?", remedy=f"Give a run folder or a checkpoint{known}")


def runs_of_sweep(folder: Path, without: Container[Path] = ()) -> list[RunFolder]:
    """Return the runs in the folder of a sweep, by name, except those in the resolved folders `without`."""
    paths = [path for path in sorted(folder.glob("*")) if is_run_folder(path)]  # no link to itself, for one
    return [RunFolder(path) for path in paths if not without or path.resolve() not in without]


def status_of(summary: Mapping[str, Any]) -> str:
    """Return the status that a summary records; `pruned` or `stopped` for a run that a study or a rule ended early."""
    status = str(summary.get("status", RunStatus.NOT_STARTED))
    if status != RunStatus.FINISHED:
        return status
    if summary.get("pruned"):
        return RunStatus.PRUNED
    is_stopped = str(summary.get("end_reason") or "").startswith(STOPPED_BY_RULE)
    return RunStatus.STOPPED if is_stopped else status


def result_values(summary: Mapping[str, Any]) -> str:
    """Return the last and the best value of the metric that decides the best checkpoint, in words; "" without one.

    >>> result_values({"best": {"metric": "val/accuracy", "value": 0.75}, "metrics": {"val/accuracy": 0.5}})
    'val/accuracy 0.5000, best 0.7500'
    """
    if (best := summary.get("best")) is None:
        return ""
    last = (summary.get("metrics") or {}).get(best["metric"], best["value"])
    both = (last, best["value"])
    shown = "not finite" if last is None else format_metric(last, beside=both)  # it is null in the record
    return f"{best['metric']} {shown}, best {format_metric(best['value'], beside=both)}"


def performance_text(summary: Mapping[str, Any]) -> str:
    """Return speed, memory and compilation of a run as one line; "" if nothing was measured."""
    perf, compiled = summary.get("perf") or {}, summary.get("compile") or {}
    rate, memory = perf.get("updates_per_second"), perf.get("peak_memory_gib")
    parts = [] if rate is None else [f"{number(rate)} updates/s"]
    parts += [] if memory is None else [f"{memory:.2f} GiB at most"]
    if compiled.get("graphs"):
        for key in ("graphs", "graph_breaks", "recompiles"):
            word = key.replace("_", " ")
            parts.append(f"{compiled[key]} {word if compiled[key] != 1 else word.removesuffix('s')}")
        parts.append(f"{compiled['seconds']:.1f} s to compile")
    return ", ".join(parts)


def read_overrides(path: Path) -> list[str]:
    """Return the overrides with which a run was started.

    Raises:
        RecordError: the file is damaged.
    """
    return read_yaml(path / HYDRA / HYDRA_OVERRIDES, list[str]) or []


def read_options(path: Path) -> dict[str, str | None]:
    """Return the option of each config group in a run.

    Raises:
        RecordError: the file is damaged.
    """
    settings = read_yaml(path / HYDRA / HYDRA_SETTINGS, HydraSettings)
    return settings.hydra.runtime.choices if settings else {}


def choices_in(overrides: Iterable[str]) -> dict[str, str]:
    """Return the value of each key in a list of overrides.

    >>> choices_in(["optimizer=adamw", "+scheduler@schedules.weight_decay=linear"])
    {'optimizer': 'adamw', 'scheduler@schedules.weight_decay': 'linear'}
    """
    parts = (override.lstrip("+~").partition("=") for override in overrides)
    return {key: value for key, _, value in parts}


def mark(folder: Path, status: RunStatus, error: Mapping[str, str] | None = None) -> None:
    """Write how a run ended into its summary, for a run that could not write it itself; `error`: type and message."""
    try:
        summary = RunFolder(folder).recorded
    except RecordError:
        summary = {}
    write_json(folder / SUMMARY, {"num_updates": 0} | summary | {"status": status, "error": error})


def missing_folders(folder: Path) -> list[Path]:
    """Return the folder and its parents that do not exist, the innermost first."""
    # os.path.exists returns False where Path.exists raises, for a name that is too long, for example.
    return [path for path in (folder, *folder.parents) if not os.path.exists(path)]  # noqa: PTH110


def remove_if_empty(folders: Iterable[Path]) -> None:
    """Remove the empty ones of these folders, in this order (after a refused run: those made for it)."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def modified(file: Path) -> float:
    """Return when a file was last written, in unix seconds; 0 if there is none."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
