"""`hydrant.compose` and `hydrant.train`: the config of a run, composed and checked, and its training here."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from hydrant.config.check import check
from hydrant.config.command_line import refuse_sweep
from hydrant.config.compose import HYDRA_LOCK, compose_run, without_hydra
from hydrant.config.flat import begin_run
from hydrant.errors import ConfigError, Interrupted, recorded_error
from hydrant.files.plain_values import check_value
from hydrant.interface import Run, known_arguments, passed_objects, unchanged_process
from hydrant.runs.folder import RunStatus, missing_folders, remove_if_empty
from hydrant.runs.job import Job, RunResult, job_of, place
from hydrant.runs.log_setup import process_settings
from hydrant.terminal.console import relative

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import Dataset

    from hydrant.data import Data
    from hydrant.tasks import Task


class Config(Mapping[str, Any]):
    """The config of a run, read like a dict: `config["optimizer"]["lr"]`. `compose` makes it.

    It cannot be changed. To change a key, compose again: `hydrant.compose([*config.overrides, "seed=1"])`.

    Args:
        composed: as Hydra composed it, with the node `hydra`.

    Raises:
        ConfigError: a key or a value is wrong; `key` names it.
    """

    def __init__(self, composed: DictConfig) -> None:
        self._composed = composed
        refuse_sweep(composed.hydra.runtime.choices, composed.hydra.overrides.hydra)
        self._resolved = check(without_hydra(composed.copy()))
        self.overrides: tuple[str, ...] = tuple(map(str, composed.hydra.overrides.task))
        """The overrides that it was composed with, without those of `hydra`."""

    def __getitem__(self, key: str) -> Any:
        return _frozen(self._resolved[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._resolved)

    def __len__(self) -> int:
        return len(self._resolved)

    def __str__(self) -> str:
        return OmegaConf.to_yaml(OmegaConf.create(self._resolved))

    def __repr__(self) -> str:
        return f"Config({', '.join(self.overrides)})"

    def job(self, folder: str | Path | None, nodes: Mapping[str, Mapping[str, Any]]) -> Job:
        """Return the job that trains this config.

        Args:
            folder: the run folder; by default that of the same command: outputs/<name>, or a new one.
            nodes: replace whole config groups, before the others refer to them.
        """
        composed = copy.deepcopy(self._composed)
        with open_dict(composed):
            for group, node in nodes.items():
                composed[group] = node
                composed.hydra.runtime.choices[group] = str(node["type"]).rpartition(".")[2]
        begin_run()
        job = job_of(composed, place(composed, folder=folder))
        path = job.folder if folder is None else Path(folder)
        return replace(job, folder=path, call=f"hydrant.train(config, folder={relative(path)!r})")


@known_arguments
def compose(overrides: Sequence[str] = (), *, conf: str | Path | None = None) -> Config:
    """Compose a config like the command line: `hydrant.compose(["optimizer=sgd", "seed=1"])`.

    Args:
        overrides: as after `hydrant train`.
        conf: your conf folder; by default `$HYDRANT_CONF` or `./conf`, if there is one.

    Threads may call it at once; one of them composes at a time.

    Raises:
        ConfigError: a key or a value is wrong; `key` names it.

    >>> config = compose(["optimizer=sgd", "optimizer.lr=0.2"])
    >>> config["optimizer"]["lr"], config["data"]["num_classes"]
    (0.2, 10)
    """
    check_value("overrides", Sequence[str], overrides)
    if conf is not None and not Path(conf).is_dir():
        remedy = "give the folder of your config groups"
        raise ConfigError("conf", f"{conf} is not a folder", remedy=remedy)
    with HYDRA_LOCK, process_settings():  # which restores the variable
        if conf is not None:
            os.environ["HYDRANT_CONF"] = str(conf)
        return Config(compose_run(overrides))


def _frozen(value: Any) -> Any:
    """Return a value whose parts cannot be changed: a change would not reach the run."""
    if isinstance(value, dict):
        return MappingProxyType({name: _frozen(item) for name, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@known_arguments
def train(
    config: Config,
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    data: Data | tuple[Dataset[Any], Dataset[Any]] | None = None,
    task: Callable[[nn.Module], Task] | None = None,
    folder: str | Path | None = None,
) -> Run:
    """Train a config, or continue its run, and return the run when it has finished.

    The run is that of the same command: `name` and `folder` decide where it is, and whether it continues there.

    Args:
        config: from `hydrant.compose`.
        model: replaces the config group `model`. A class, or a function without arguments, makes the model, and the
            key `seed` decides its weights. Of a module, the run trains a copy, from the weights that it has now.
        data: replaces the config group `data`: a `hydrant.data.Data`, or two map-style data sets of torch, for training
            and validation.
        task: replaces the config group `task`: a class or a function that takes the model.
        folder: the run folder; by default outputs/<name>, or a new one in outputs/ without a name.

    Raises:
        ConfigError: the config cannot run, or the folder holds another run; `key` names what to change.
        HydrantError: the run failed: NaN in the loss, a full memory, a damaged checkpoint and so on.
        KeyboardInterrupt: Ctrl-C. The run is saved, and the call that its message names continues it.
        Interrupted: another signal, such as SIGTERM, likewise.
        Exception: what a part of yours raised.
    """
    with process_settings():
        from hydrant.training.distributed.env import is_started_as_rank
        from hydrant.training.passed_objects import nodes_of, passing  # imports torch

    if not isinstance(config, Config):
        needed = 'a config: hydrant.train(hydrant.compose(["optimizer=sgd"]))'
        raise ConfigError("config", needs=f"{needed}, not a {type(config).__name__}")
    objects = passed_objects(model, data, task)
    if is_started_as_rank():
        raise ConfigError("parallel", "hydrant.train starts all ranks", remedy=": parallel.num_processes=2")
    with unchanged_process(), passing(objects):
        job = config.job(folder, nodes_of(objects))
        if objects and job.config["parallel"]["num_processes"] > 1:
            message = f"{', '.join(objects)} cannot be passed to other processes"
            raise ConfigError("parallel.num_processes", message, remedy="use 1 rank, or config groups")
        from hydrant.runs.execute import execute

        new_folders = missing_folders(job.folder)
        result = execute(job)
        if result.status == RunStatus.REFUSED:
            remove_if_empty(new_folders)
    if result.exit_status:
        raise _error_of(result)
    return Run(job.folder, objects, job.config["allow_targets"])


def _error_of(result: RunResult) -> BaseException:
    """Return the exception for a run that did not finish: the original one if it was raised in this process."""
    if result.exit_status == 128 + signal.SIGINT:
        return KeyboardInterrupt(result.message)
    type_name = Interrupted.__name__ if result.exit_status > 128 else result.error_type
    return result.exception or recorded_error(type_name, result.message, result.exit_status)
