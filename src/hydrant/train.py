"""`train`: from the command line, through Hydra, to one run in this process or to the jobs of a sweep."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrant.config import ENTRY, check, choices_of, conf_dir, record_of, register
from hydrant.config.arguments import flags_first, refuse_grid
from hydrant.config.guard import guarding_hydra
from hydrant.config.messages import HYDRA_ERRORS, PLAIN_ERRORS, explain
from hydrant.config.once import composing_once
from hydrant.errors import ConfigError, HydrantError
from hydrant.importing import importing
from hydrant.isolation import Stopped
from hydrant.job import Job, Result, missing_folders, remove_if_empty, report
from hydrant.launchers import is_started_as_rank
from hydrant.signals import heed_only_sigint, stop_with
from hydrant.sweep import Sweep
from hydrant.sweep import current as current_sweep

_RUN_SECONDS = 366 * 24 * 3600.0
"""What a collective may take: how long a rank may stand still is the run's to say, which is not composed yet."""


def main(arguments: Sequence[str]) -> int:
    """Train with these overrides; the exit status."""
    if is_started_as_rank():
        return _train_as_rank(arguments)
    words = _prepare_hydra(arguments)
    sweep, results = Sweep(), list[Result]()
    current_sweep.set(sweep)

    def task(config: DictConfig) -> float | None:
        settings = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN:
            return sweep.run(_job(config, settings), settings.job.num, dict(settings.job.env_set))
        results.append(_run_here(config, settings))
        return results[0].value

    stopped, failure = 0, ""
    try:
        _run_hydra(words, task)
    except HydrantError as error:
        if not sweep.has_run:
            raise
        failure = str(error)
    except KeyboardInterrupt:
        stopped = 130
        if not (sweep.has_run or results):
            print("stopped by a signal before the first job", file=sys.stderr, flush=True)
    except Stopped as request:
        stopped = request.exit_status
    finally:
        remove_if_empty(HydraNotes.made)
    if results:
        return report(results[0])
    failed = any([sweep.close(folder) for folder in HydraNotes.sweeps])
    if failure and not stopped:
        report(Result(1, None, failure))
    return stopped or int(failed or bool(failure))


def _prepare_hydra(arguments: Sequence[str]) -> list[str]:
    """Set up what Hydra reads; its words."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach `hydrant.cli` whole, which words them
    words = flags_first(arguments)
    sys.argv[1:] = words
    HydraNotes.forget()
    return words


def _train_as_rank(arguments: Sequence[str]) -> int:
    """Under torchrun or srun: rank 0 composes the config, and all train."""
    parent = os.getppid()  # now: it may end while torch is imported
    with importing():
        from hydrant.distributed import World
        from hydrant.launching import tell_agent
        from hydrant.run import execute

    if "TORCHELASTIC_RUN_ID" in os.environ:
        stop_with(parent)  # torchrun
    world = World.from_launcher()
    with world.group(_RUN_SECONDS):
        try:
            job = world.from_rank_zero(lambda: _composed(arguments))
        except HydrantError as error:
            heed_only_sigint()
            if world.is_rank_zero:
                raise
            return error.exit_status
        result = Result(0, None, "") if job is None else execute(job)
    if 0 < result.exit_status < 128 and "TORCHELASTIC_ERROR_FILE" in os.environ:
        tell_agent(result.message)
    return report(result) if world.is_rank_zero else result.exit_status


def _composed(arguments: Sequence[str]) -> Job | None:
    """The job of these overrides; None where Hydra only shows something, such as its help."""
    if {"-m", "--multirun"} & set(arguments):
        told = "a sweep starts the ranks of its jobs itself: python train.py --multirun parallel.num_processes=2 ..."
        raise ConfigError("", told)
    words = _prepare_hydra(arguments)
    jobs: list[Job] = []

    def note(config: DictConfig) -> None:
        jobs.append(_job(config, HydraConfig.get()))

    try:
        _run_hydra(words, note)
    except HYDRA_ERRORS as error:
        raise explain(error) from None  # what Hydra raises does not travel between processes
    return jobs[0] if jobs else None


def _run_hydra(words: Sequence[str], task: Any) -> None:
    """Compose, and call `task` for each job.

    Raises:
        HydrantError: nothing was started, for what is said; or what a job raised.
    """
    try:
        with composing_once(words), guarding_hydra(words):
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=ENTRY)(task)()
    except MissingConfigException:
        raise  # is an OSError
    except OSError as error:  # of Hydra, which makes the folders; a run tells its own
        key = "hydra.sweep.dir" if HydraNotes.sweeps else "hydra.run.dir"
        where = f"{error.filename or 'the run folder'} cannot be made ({error.strerror or error})"
        raise ConfigError(key, f"{where}; give a folder that can be written: {key}=<folder>") from error
    except PLAIN_ERRORS as error:
        if HydraNotes.has_begun:
            raise
        raise explain(error) from error  # Hydra's own, about the command line


class HydraNotes(Callback):
    """Notes what Hydra is about to do (`hydra.callbacks` in conf/train.yaml), for it does not tell later."""

    sweeps: ClassVar[list[Path]] = []
    made: ClassVar[list[Path]] = []  # folders that were not there before, the inner first
    has_begun: ClassVar[bool] = False

    @classmethod
    def forget(cls) -> None:
        cls.sweeps, cls.made, cls.has_begun = [], [], False

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        with suppress(OmegaConfBaseException):  # Hydra is about to meet and raise the same
            HydraNotes.made = missing_folders(Path(config.hydra.run.dir))
            HydraNotes.has_begun = True

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        with suppress(OmegaConfBaseException):
            HydraNotes.made = missing_folders(Path(config.hydra.sweep.dir))
            HydraNotes.sweeps.append(Path(config.hydra.sweep.dir))
            HydraNotes.has_begun = True


def _job(config: DictConfig, settings: Any) -> Job:
    resolved = check(config)
    records = {
        "config.yaml": record_of(config),
        "hydra.yaml": record_of(OmegaConf.create({"hydra": settings})),
        "overrides.yaml": record_of(settings.overrides.task),
    }
    folder, choices = Path(settings.runtime.output_dir), choices_of(settings.runtime.choices)
    in_sweep = settings.mode == RunMode.MULTIRUN
    if not in_sweep:
        refuse_grid(settings.runtime.choices)
    sweep_folder = Path(settings.runtime.cwd, settings.sweep.dir) if in_sweep else None
    return Job(resolved, folder, choices, records, list(settings.overrides.task), sweep_folder)


def _run_here(config: DictConfig, settings: Any) -> Result:
    try:
        job = _job(config, settings)
    except HydrantError as error:
        return Result(error.exit_status, None, str(error))
    with importing():
        from hydrant.run import execute  # brings in torch

    return execute(job)
