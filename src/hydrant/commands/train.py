"""`train`: compose the command line, then execute one run in this process, or the jobs of a sweep."""

import json
import os
import time
from argparse import Namespace
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf

from hydrant.config.command_line import Flags, check_overrides, expand_lists, refuse_sweep
from hydrant.config.compose import ENTRY, Composer, JobComposer, Primary, composing, without_hydra
from hydrant.config.groups import conf_dir
from hydrant.errors import ConfigError, HydrantError, concerns, typed_line, why_no_folder
from hydrant.files.redaction import redacted_text
from hydrant.imports import paused_gc
from hydrant.runs.folder import RunFolder, missing_folders, remove_if_empty
from hydrant.runs.job import Job, RunResult, hydra_settings, job_of, place, report, sweep_folder
from hydrant.signals import ignore_stop_signals, stop_when_orphaned
from hydrant.terminal import console
from hydrant.terminal.text import align_columns
from hydrant.training.distributed.env import is_started_as_rank


def main(arguments: Sequence[str]) -> int:
    """Train with these overrides and return the exit status."""
    if is_started_as_rank():
        return _train_as_rank(arguments)
    console.show_activity("composing the config")
    flags = parse_flags(arguments)
    try:
        with composing(flags.overrides, primary_of(flags)) as composer:
            if prints(flags):
                return _show(flags, composer)
            config = composer.compose_command(is_sweep=flags.multirun)
            if config.hydra.mode == RunMode.MULTIRUN:
                return _run_sweep(config, composer)
            job, _, logs = _job(config)
        return _ended(job, _execute(job, logs))
    except KeyboardInterrupt:
        return console.say_error("stopped by SIGINT before anything was started", 130)


def _ended(job: Job, result: RunResult) -> int:
    """Print how a run ended, and return the exit status."""
    if console.wants_json() and result.exit_status != ConfigError.exit_status:
        console.answer(_plain(RunFolder(job.folder)))
    return report(result)


def _plain(run: RunFolder) -> dict[str, Any]:
    """Return what a run has come to, in plain types."""
    summary = run.summary
    fields = ("num_updates", "total_updates", "metrics", "best", "error")
    return {"folder": console.relative(run.path), "status": run.status} | {
        key: summary.get(key) for key in fields
    }


def _show(flags: Namespace, composer: Composer) -> int:
    if console.wants_json():
        remedy = "the config is YAML, so leave the flag out"
        raise ConfigError(console.FLAG, "is for a command that trains", remedy=remedy)
    show(flags, composer)
    return console.output_status()


def _job(config: DictConfig) -> tuple[Job, dict[str, str], Any]:
    """Return the job of a single run, `hydra.job.env_set`, and what `hydra.job_logging` and `hydra.verbose` say."""
    settings = config.hydra
    refuse_sweep(settings.runtime.choices, settings.overrides.hydra)
    placed = place(config)
    with hydra_settings(settings):
        logs = OmegaConf.to_container(settings.job_logging, resolve=True), settings.verbose
        variables: Any = OmegaConf.to_container(settings.job.env_set, resolve=True)
    # Before `job_of` imports torch, which reads some. `hydrant.cli` restores them.
    os.environ.update(variables)
    return job_of(config, placed), variables, logs


def _execute(job: Job, logs: Any) -> RunResult:
    """Make the run folder and execute the job."""
    logging, verbose = logs
    with _filling(job.folder, "hydra.run.dir"):
        job.folder.mkdir(parents=True, exist_ok=True)
        configure_log(DictConfig(logging), verbose)
        console.show_activity("importing PyTorch")
        with paused_gc():
            from hydrant.runs.execute import execute  # imports torch

        return execute(job)


def _run_sweep(config: DictConfig, composer: Composer) -> int:
    """Run the jobs of a sweep and return the exit status."""
    from hydrant.sweeps.grid import Context, sweeper_of
    from hydrant.sweeps.sweep import RunningSweep

    sweep = RunningSweep(sweep_folder(config))
    with _filling(sweep.folder, "hydra.sweep.dir"), sweep.command():
        sweeper_of(Context(config, JobComposer(composer, config), sweep)).run()
    return sweep.close()


@contextmanager
def _filling(folder: Path, key: str) -> Generator[None]:
    """Let a block fill a folder that a key of the config names. It and its parents are removed if they remain empty."""
    new_folders = missing_folders(folder)
    try:
        yield
    except HydraException:
        raise  # some are OSErrors
    except OSError as error:  # the jobs report their own
        if not concerns(error, folder):
            raise HydrantError(typed_line(error)) from error
        where = why_no_folder(Path(console.relative(Path(error.filename))), error)
        remedy = f"give a folder that can be written: {key}=<folder>"
        raise ConfigError(key, where, remedy=remedy) from error
    finally:
        remove_if_empty(new_folders)


def _train_as_rank(arguments: Sequence[str]) -> int:
    """Train under torchrun or srun: rank 0 composes the config, all ranks train."""
    parent = os.getppid()  # read now, because it may end while torch is imported
    with paused_gc():
        import torch.distributed as dist

        from hydrant.runs.execute import execute
        from hydrant.training.distributed.world import World, end_process

    if "TORCHELASTIC_RUN_ID" in os.environ:
        stop_when_orphaned(parent)  # of torchrun
    world, is_inside_group = World.from_launcher(), dist.is_initialized()
    with world.process_group():  # ends before the run, whose group has the timeout of its config
        try:
            job, variables = world.broadcast_from_rank_zero(lambda: _compose_job(arguments))
        except HydrantError as error:
            ignore_stop_signals()
            if world.is_rank_zero:
                raise
            return error.exit_status
    os.environ.update(variables)
    result = RunResult.finished() if job is None else execute(job)
    if 0 < result.exit_status < 128 and (file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        details = {"py_callstack": redacted_text(result.message), "timestamp": int(time.time())}
        content = {"message": {"message": details["py_callstack"], "extraInfo": details}}
        Path(file).write_text(json.dumps(content), encoding="utf-8")  # torchrun's last report shows it
    status = result.exit_status
    if world.is_rank_zero:
        status = report(result) if job is None else _ended(job, result)
    if dist.is_initialized() and not is_inside_group:  # a failed run has left its group
        end_process(status)
    return status


def _compose_job(arguments: Sequence[str]) -> tuple[Job | None, dict[str, str]]:
    """Return the job of these overrides, None if the command only prints something, and the variables that it sets."""
    flags = parse_flags(arguments)
    with composing(flags.overrides, primary_of(flags)) as composer:
        if prints(flags):
            _show(flags, composer)
            return None, {}
        config = composer.compose_command(is_sweep=flags.multirun)
        if config.hydra.mode != RunMode.MULTIRUN:
            return _job(config)[:2]
    remedy = ": python train.py --multirun parallel.num_processes=2 ..."
    raise ConfigError("", "a sweep starts the ranks of its jobs itself", remedy=remedy)


def train_flags() -> Flags:
    """Return the parser of `train`: the overrides, and those flags of Hydra that work with Hydrant."""
    flags = Flags("train")
    flags.add_argument("--version", action="version", version=f"Hydra {hydra.__version__}")
    modes = flags.add_mutually_exclusive_group()
    modes.add_argument("--run", "-r", action="store_true")
    modes.add_argument("--multirun", "-m", action="store_true")
    modes.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    modes.add_argument("--info", "-i", action="store_true")
    flags.add_argument("--resolve", action="store_true")
    flags.add_argument("--package", "-p")
    flags.add_argument("--config-path", "-cp")
    flags.add_argument("--config-name", "-cn")
    flags.add_argument("--config-dir", "-cd")
    return flags


def parse_flags(arguments: Sequence[str]) -> Namespace:
    """Return the flags of a `train` command, with its checked overrides.

    >>> flags = parse_flags(["seed=1", "--multirun", "tracker=[local,tensorboard]"])
    >>> flags.multirun, flags.overrides
    (True, ['seed=1', 'tracker=local', '+tracker@trackers.tensorboard=tensorboard'])

    Raises:
        ConfigError: A flag is unknown, or an override cannot be parsed.
    """
    flags, words = train_flags().split(arguments)
    check_overrides(words)
    flags.overrides = expand_lists(words)
    return flags


def primary_of(flags: Namespace) -> Primary:
    """Return which config the flags name.

    Raises:
        ConfigError: A folder does not exist.
    """
    paths = {"--config-path": flags.config_path, "--config-dir": flags.config_dir}
    folders = {name: Path(path).absolute() for name, path in paths.items() if path is not None}
    for name, folder in folders.items():
        if not folder.is_dir():
            remedy = "give the folder of your config groups"
            raise ConfigError(name, f"{paths[name]} is not a folder", remedy=remedy)
    folder = folders.get("--config-path", conf_dir())
    return Primary(folder, flags.config_name or ENTRY, folders.get("--config-dir"))


def prints(flags: Namespace) -> bool:
    """Return whether the command only prints something.

    Raises:
        ConfigError: --resolve is given without --cfg.
    """
    if flags.resolve and not flags.cfg:
        raise ConfigError("--resolve", "belongs to --cfg", remedy=": --cfg job --resolve")
    return bool(flags.cfg or flags.info)


def show(flags: Namespace, composer: Composer) -> None:
    """Print what the flags of a `train` command ask for."""
    if flags.cfg is not None:
        print(_config_text(flags, composer.compose(flags.overrides)), end="")
    else:
        for line in _info(composer, flags.overrides):
            print(line)


def _config_text(flags: Namespace, config: DictConfig) -> str:
    """Return the part of a config that --cfg and --package name, as YAML."""
    HydraConfig.instance().cfg = cast("Any", SimpleNamespace(hydra=config.hydra))  # for ${hydra:...}
    package = None if flags.package == "_global_" else flags.package
    shown: Any = config.hydra if flags.cfg == "hydra" else config
    if package is not None:
        shown = OmegaConf.select(config, package)
    elif flags.cfg == "job":
        shown = without_hydra(config)
    if shown is None:
        raise ConfigError("--package", f"no key {package!r} in the config")
    if not isinstance(shown, Container):
        return f"{shown}\n"
    if flags.resolve:
        OmegaConf.resolve(shown)
    if package is None and flags.cfg == "hydra":
        shown = OmegaConf.masked_copy(config, "hydra")
    return f"{'' if package is None else f'# @package {package}'}\n{OmegaConf.to_yaml(shown)}".lstrip("\n")


def _info(composer: Composer, words: list[str]) -> Iterator[str]:
    """Yield the folders that Hydra searches, and the config files that it composes, each with where it places its
    keys and which file includes it."""
    yield "Config search path"
    for source in composer.compose(words).hydra.runtime.config_sources:
        yield f"  {source.provider:<14}{source.schema}://{source.path}"
    defaults = composer.loader.compute_defaults_list(composer.name, words, RunMode.RUN).defaults
    rows = [[d.config_path or "", d.package or "", d.parent or ""] for d in defaults]
    lines = align_columns([["file", "package", "included by"], *rows], {0, 1, 2})
    yield from ("", "Defaults list", *map(str.rstrip, lines))
