"""`hydrant.train`: train a config in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.errors import ConfigError, Interrupted, recorded_error
from hydrant.interface import known_arguments
from hydrant.interface.config import Config
from hydrant.interface.run import Run, passed_objects
from hydrant.runs.folder import RunStatus, missing_folders, remove_if_empty
from hydrant.runs.job import Job, RunResult
from hydrant.runs.log_setup import process_settings

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import Dataset

    from hydrant.data import Data
    from hydrant.tasks import Task


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
        from hydrant.interface.process import unchanged_process  # imports torch
        from hydrant.training.distributed.env import is_started_as_rank
        from hydrant.training.passed_objects import nodes_of, passing

    if not isinstance(config, Config):  # pyright: ignore[reportUnnecessaryIsInstance]
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
        result = _execute(job)
    if result.exit_status:
        raise _error_of(result)
    return Run(job.folder, objects, job.config["allow_targets"])


def _execute(job: Job) -> RunResult:
    """Execute the job. Remove its new folder if it is refused."""
    from hydrant.runs.execute import execute

    new_folders = missing_folders(job.folder)
    result = execute(job)
    if result.status == RunStatus.REFUSED:
        remove_if_empty(new_folders)
    return result


def _error_of(result: RunResult) -> BaseException:
    """Return the exception for a run that did not finish: the original one if it was raised in this process."""
    if result.exit_status == 128 + signal.SIGINT:
        return KeyboardInterrupt(result.message)
    type_name = Interrupted.__name__ if result.exit_status > 128 else result.error_type
    return result.exception or recorded_error(type_name, result.message, result.exit_status)
