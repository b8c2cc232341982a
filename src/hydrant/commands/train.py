"""`train`: compose the command line with Hydra, then execute one run in this process, or the jobs of a sweep."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig

from hydrant.config.check import check
from hydrant.config.command_line import refuse_sweep
from hydrant.config.compose import ENTRY, register_resolvers
from hydrant.config.compose_once import compose_once
from hydrant.config.error_messages import BUILTIN_ERRORS, HYDRA_ERRORS, explain
from hydrant.config.groups import conf_dir
from hydrant.config.hydra_guard import guard_hydra
from hydrant.config.hydra_main import parse_flags, run_hydra
from hydrant.config.shared_options import share_options
from hydrant.errors import ConfigError, HydrantError, concerns, typed_line, why_no_folder
from hydrant.imports.without_gc import import_without_gc
from hydrant.runs.folder import remove_if_empty
from hydrant.runs.folder_callback import FolderCallback
from hydrant.runs.job import Job, job_of
from hydrant.runs.outcome import RunResult, report
from hydrant.signals import Stopped, ignore_stop_signals, stop_when_orphaned
from hydrant.sweeps.sweep import Sweep, current_sweep
from hydrant.terminal.console import notice, output_status, show_activity
from hydrant.training.distributed.env import is_started_as_rank


def main(arguments: Sequence[str]) -> int:
    """Train with these overrides and return the exit status."""
    if is_started_as_rank():
        return _train_as_rank(arguments)
    sweep, results = Sweep(), list[RunResult]()

    def task(config: DictConfig) -> float | None:
        settings = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN:
            return sweep.run(_job(config, settings), settings.job.num, dict(settings.job.env_set))
        results.append(_execute(config, settings))
        return results[0].value

    token = current_sweep.set(sweep)
    stop_status, failure = 0, ""
    try:
        _run_hydra(arguments, task)
    except HydrantError as error:
        if not sweep.has_run:
            raise
        failure = str(error)
    except KeyboardInterrupt:
        stop_status = 130
        if not (sweep.has_run or results):
            notice("stopped by SIGINT before anything was started")
    except Stopped as request:
        stop_status = request.exit_status
    finally:
        current_sweep.reset(token)
        remove_if_empty(FolderCallback.new_folders)
    if results:
        return report(results[0])
    if not FolderCallback.has_begun:  # Hydra has only printed something (--cfg, --info)
        return stop_status or output_status()
    has_failed = any(
        [sweep.close(path, is_stopped=stop_status != 0) for path in FolderCallback.sweep_folders]
    )
    if failure and not stop_status:
        report(RunResult.failed(failure))
    return stop_status or int(has_failed or bool(failure))


def _train_as_rank(arguments: Sequence[str]) -> int:
    """Train under torchrun or srun: rank 0 composes the config, all ranks train."""
    parent = os.getppid()  # read now, because it may end while torch is imported
    with import_without_gc():
        import torch.distributed as dist

        from hydrant.runs.elastic import write_error_file
        from hydrant.runs.execute import execute
        from hydrant.training.distributed.world import World, end_process

    if "TORCHELASTIC_RUN_ID" in os.environ:
        stop_when_orphaned(parent)  # of torchrun
    world, is_inside_group = World.from_launcher(), dist.is_initialized()
    with world.process_group():  # ends before the run, whose group has the timeout of its config
        try:
            job = world.broadcast_from_rank_zero(lambda: _compose_job(arguments))
        except HydrantError as error:
            ignore_stop_signals()
            if world.is_rank_zero:
                raise
            return error.exit_status
    result = RunResult.finished() if job is None else execute(job)
    if 0 < result.exit_status < 128 and "TORCHELASTIC_ERROR_FILE" in os.environ:
        write_error_file(result.message)
    status = report(result) if world.is_rank_zero else result.exit_status
    if dist.is_initialized() and not is_inside_group:  # a failed run has left its group
        end_process(status)
    return status


def _compose_job(arguments: Sequence[str]) -> Job | None:
    """Return the job of these overrides; None if Hydra only prints something, such as its help."""
    if {"-m", "--multirun"} & set(arguments):
        command = "python train.py --multirun parallel.num_processes=2 ..."
        raise ConfigError("", f"a sweep starts the ranks of its jobs itself: {command}")
    jobs: list[Job] = []

    def task(config: DictConfig) -> None:
        jobs.append(_job(config, HydraConfig.get()))

    try:
        _run_hydra(arguments, task)
    except HYDRA_ERRORS as error:
        raise explain(error) from None  # Hydra's own errors cannot be pickled for other ranks
    return jobs[0] if jobs else None


def _run_hydra(arguments: Sequence[str], task: Callable[[DictConfig], Any]) -> None:
    """Let Hydra compose the config and call `task` for each job.

    Raises:
        HydrantError: the command line or the config is wrong, or a job raised it.
    """
    show_activity("composing the config")
    register_resolvers()
    flags = parse_flags(arguments)
    FolderCallback.reset()
    # Hydra then raises its errors instead of printing them and exiting. `hydrant.cli` restores the variables.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with compose_once(is_sweep=flags.multirun), share_options(), guard_hydra(tuple(flags.overrides)):
            run_hydra(flags, task, conf_dir(), ENTRY)
    except MissingConfigException:
        raise  # an OSError that says what is missing
    except OSError as error:  # a run reports its own OSErrors
        if FolderCallback.folder is None or not concerns(error, FolderCallback.folder):
            raise HydrantError(typed_line(error)) from error
        key = "hydra.sweep.dir" if FolderCallback.sweep_folders else "hydra.run.dir"
        where = why_no_folder(Path(error.filename), error)
        raise ConfigError(key, f"{where}; give a folder that can be written: {key}=<folder>") from error
    except BUILTIN_ERRORS as error:
        if FolderCallback.has_begun:
            raise
        raise explain(error) from error  # Hydra rejects the command line


def _job(config: DictConfig, settings: Any) -> Job:
    """Check a composed config and return its job. `settings` is the `hydra` node."""
    if settings.mode != RunMode.MULTIRUN:
        refuse_sweep(settings.runtime.choices, settings.overrides.hydra)
    return job_of(check(config), config, settings)


def _execute(config: DictConfig, settings: Any) -> RunResult:
    try:
        job = _job(config, settings)
    except HydrantError as error:
        return RunResult.from_error(error)
    show_activity("importing PyTorch")
    with import_without_gc():
        from hydrant.runs.execute import execute  # imports torch

    return execute(job)
