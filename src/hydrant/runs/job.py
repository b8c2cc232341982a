"""`Job`: everything that a process needs to execute one run, in plain types that are sent between processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from hydrant.config.check import check
from hydrant.config.flat import group_choices, redacted_yaml
from hydrant.errors import ConfigError, shown
from hydrant.files.bounded_yaml import PlainLoader
from hydrant.runs.folder import HYDRA_CONFIG, HYDRA_OVERRIDES, HYDRA_SETTINGS
from hydrant.runs.optuna_trial import Trial
from hydrant.terminal.console import relative


@dataclass(frozen=True)
class Job:
    """One run to execute."""

    config: Mapping[str, Any]  # resolved and checked
    folder: Path  # the run folder
    choices: Mapping[str, str | None]  # {"optimizer": "adamw", ...}
    records: Mapping[str, str]  # the text of each of Hydra's files in .hydra/
    overrides: Sequence[str]  # as on the command line, without those of `hydra`
    sweep_folder: Path | None  # if the job belongs to a sweep
    trial: Trial | None = None  # if the job belongs to a study
    call: str = ""  # the Python call that continues the run, if it is started from Python

    def to_json(self) -> dict[str, Any]:
        """Return the job as a JSON object, for `from_json`."""
        fields = asdict(self)
        paths = {key: str(fields[key]) for key in ("folder", "sweep_folder") if fields[key] is not None}
        return fields | paths

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Job:
        types: dict[str, Callable[[Any], Any]] = {
            "folder": Path,
            "sweep_folder": Path,
            "trial": lambda trial: Trial(**trial),
        }
        typed = {key: make(fields[key]) for key, make in types.items() if fields[key] is not None}
        return cls(**{**fields, **typed})

    def same_command(self) -> str:
        """Return the words for a message that says how to continue in this run folder."""
        if self.call:
            return self.call
        if self.config["name"] is not None:
            return "the same command"
        in_sweep = self.sweep_folder is not None
        key, folder = ("hydra.sweep.dir", self.sweep_folder) if in_sweep else ("hydra.run.dir", self.folder)
        return f"the same command with {key}={relative(folder or self.folder)}"


class Place(NamedTuple):
    """Where a run is written. Finding it evaluates interpolations, which takes a tenth of composing a job."""

    folder: Path
    sweep: Path | None  # the folder of the sweep, if the run belongs to one


def place(composed: DictConfig, number: int | None = None, folder: str | Path | None = None) -> Place:
    """Set the folder of a run in its config, which Hydra has composed, and return its place.

    Args:
        composed: the config, with the node `hydra`.
        number: of the job, in a sweep.
        folder: of a run outside of a sweep; by default that of the config.
    """
    settings, sweep = composed.hydra, None
    with hydra_settings(settings), read_write(settings), open_dict(settings):
        if number is None:
            folder = Path(folder or _folder(settings, "run.dir"))
        else:
            settings.job.id, settings.job.num = str(number), number
            sweep = Path(settings.runtime.cwd, _folder(settings, "sweep.dir"))
            folder = sweep / _folder(settings, "sweep.subdir")
        settings.runtime.output_dir = os.path.abspath(folder)  # noqa: PTH100  # a link stays
    return Place(Path(settings.runtime.output_dir), sweep)


def job_of(composed: DictConfig, placed: Place) -> Job:
    """Check a config that has its place, and return its job. Takes the node `hydra` out of the config.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    settings = composed.hydra
    with hydra_settings(settings), read_write(composed), open_dict(composed):
        del composed["hydra"]
        return Job(
            config=check(composed),
            folder=placed.folder,
            choices=group_choices(settings.runtime.choices),
            records=records_of(composed, settings),
            overrides=list(settings.overrides.task),
            sweep_folder=placed.sweep,
        )


def sweep_folder(composed: DictConfig) -> Path:
    """Return the folder of a sweep, by its config."""
    with hydra_settings(composed.hydra):
        return Path(_folder(composed.hydra, "sweep.dir"))


def _folder(settings: DictConfig, key: str) -> str:
    folder = OmegaConf.select(settings, key)
    if not isinstance(folder, str | int | float):
        raise ConfigError(f"hydra.{key}", f"needs a folder, not {shown(folder)}")
    return str(folder)


class _Recorded:
    """The recorded `hydra` node of a job, read when code of the user asks for it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @cached_property
    def hydra(self) -> DictConfig:
        recorded: Any = yaml.load(self._job.records[HYDRA_SETTINGS], PlainLoader)
        recorded["hydra"]["mode"] = RunMode[recorded["hydra"]["mode"]]
        return OmegaConf.create({**self._job.config, **recorded}).hydra


def settings_in_run(job: Job) -> AbstractContextManager[None]:
    """Let `HydraConfig.get()` in users' code return the settings of a run, in any process that executes it."""
    return _hydra_config(_Recorded(job))


def hydra_settings(settings: Any) -> AbstractContextManager[None]:
    """Let `${hydra:...}` read this `hydra` node."""
    return _hydra_config(SimpleNamespace(hydra=settings))


@contextmanager
def _hydra_config(config: Any) -> Generator[None]:
    instance: Any = HydraConfig.instance()
    previous, instance.cfg = instance.cfg, config
    try:
        yield
    finally:
        instance.cfg = previous


def records_of(config: DictConfig, settings: DictConfig) -> dict[str, str]:
    """Return the text of each of Hydra's files in .hydra/, without secrets. `settings` is the `hydra` node.

    Raises:
        ConfigError: the working folder, or another path in the settings, is no text.
    """
    try:
        return {
            HYDRA_CONFIG: redacted_yaml(config),
            HYDRA_SETTINGS: redacted_yaml({"hydra": OmegaConf.to_container(settings, enum_to_str=True)}),
            HYDRA_OVERRIDES: redacted_yaml(settings.overrides.task),
        }
    except UnicodeEncodeError as error:
        message = f"{error.object!r} is not UTF-8, which the record of a run cannot hold"
        raise ConfigError("", message, remedy="rename it, if it is a folder") from error
