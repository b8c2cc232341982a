"""`Job`: everything that a process needs to execute one run, in plain types that are sent between processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hydrant.config.flat import group_choices, redacted_yaml
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


def job_of(resolved: Mapping[str, Any], config: DictConfig, settings: DictConfig) -> Job:
    """Return the job of a config that Hydra has composed.

    Args:
        resolved: the config, checked.
        config: the config as Hydra composed it, without the `hydra` node.
        settings: the `hydra` node, with the run folder.
    """
    in_sweep = settings.mode == RunMode.MULTIRUN
    return Job(
        config=resolved,
        folder=Path(settings.runtime.output_dir),
        choices=group_choices(settings.runtime.choices),
        records=records_of(config, settings),
        overrides=list(settings.overrides.task),
        sweep_folder=Path(settings.runtime.cwd, settings.sweep.dir) if in_sweep else None,
    )


def records_of(config: DictConfig, settings: DictConfig) -> dict[str, str]:
    """Return the text of each of Hydra's files in .hydra/, without secrets. `settings` is the `hydra` node."""
    return {
        HYDRA_CONFIG: redacted_yaml(config),
        HYDRA_SETTINGS: redacted_yaml({"hydra": OmegaConf.to_container(settings, enum_to_str=True)}),
        HYDRA_OVERRIDES: redacted_yaml(settings.overrides.task),
    }
