"""`train`: one run in this process, or with `--multirun` a sweep, each job in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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

from hydrant.config import ENTRY, check, choices_of, conf_dir, register
from hydrant.config.arguments import flags_first
from hydrant.config.messages import explain
from hydrant.config.targets import locate, targets_of
from hydrant.errors import ConfigError, HydrantError, JobFailed
from hydrant.isolation import ProcessDied, call_isolated
from hydrant.job import Job, Result, missing_folders, remove_if_empty
from hydrant.runs import RunFolder, differing, runs_of_sweep, write_sweep_csv


def main(arguments: Sequence[str]) -> int:
    """Train with these overrides; the exit status."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach `hydrant.cli` whole, which words them
    sys.argv[1:] = flags_first(arguments)
    started = time.time()
    results: list[Result] = []
    HydraNotes.forget()

    def task(config: DictConfig) -> float | None:
        settings = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN:
            return _run_isolated(config, settings)
        results.append(_run_here(config, settings))
        return results[0].value

    stopped, failure = 0, ""
    try:
        _run_hydra(task)
    except JobFailed as error:  # was told when it happened
        failure = str(error)
    except KeyboardInterrupt:
        stopped = 130
    except SystemExit as request:
        stopped = int(request.code or 0)
    finally:
        remove_if_empty(HydraNotes.made)
    if results:
        return _report(results[0])
    failed = any([_close_sweep(folder, started) for folder in HydraNotes.sweeps])
    if failure and not stopped:
        print(f"error: {failure}", file=sys.stderr, flush=True)
    return stopped or int(failed or bool(failure))


def _run_hydra(task: Any) -> None:
    """Compose, and call `task` for each job.

    Raises:
        HydrantError: nothing was started, for what is said; or what a job raised.
    """
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=ENTRY)(task)()
    except MissingConfigException:
        raise  # is an OSError
    except OSError as error:
        key = "hydra.sweep.dir" if HydraNotes.sweeps else "hydra.run.dir"
        where = f"{error.filename or 'the run folder'} cannot be made ({error.strerror or error})"
        raise ConfigError(key, f"{where}; give a folder that can be written: {key}=<folder>") from error
    except (ValueError, TypeError, AssertionError, KeyError) as error:
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
        "config.yaml": OmegaConf.to_yaml(config),
        "hydra.yaml": OmegaConf.to_yaml(OmegaConf.create({"hydra": settings})),
        "overrides.yaml": OmegaConf.to_yaml(settings.overrides.task),
    }
    folder, choices = Path(settings.runtime.output_dir), choices_of(settings.runtime.choices)
    return Job(resolved, folder, choices, records, settings.mode == RunMode.MULTIRUN)


def _run_here(config: DictConfig, settings: Any) -> Result:
    try:
        return _execute(_job(config, settings))
    except HydrantError as error:
        return Result(error.exit_status, None, str(error))


def _execute(job: Job) -> Result:
    from hydrant.run import execute  # brings in torch

    return execute(job)


def _run_isolated(config: DictConfig, settings: Any) -> float | None:
    """One job of a sweep; raises JobFailed after saying why."""
    job, number = _job(config, settings), settings.job.num
    print(f"job {number}: {job.folder.name}", flush=True)
    try:
        result = call_isolated(_execute, (job,), preload=sorted(_slow_imports(job.config)))
    except ProcessDied as death:
        result = Result(1, None, str(death))
    if result.exit_status == ConfigError.exit_status:
        remove_if_empty([job.folder])
    if result.exit_status == 0:
        return result.value
    print(f"job {number}: ", end="", file=sys.stderr)
    status = _report(result)
    if status > 128:  # the sweep was asked to stop, and its job has saved its state
        raise SystemExit(status)
    raise JobFailed(f"{job.folder.name}: {result.message}")


def refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(key, reason) why each checked config cannot run on this machine, ("", "") where it can."""
    preload = sorted({module for config in configs for module in _slow_imports(config)})
    try:
        return call_isolated(_try_to_prepare, (list(configs),), preload=preload)
    except ProcessDied:  # the job itself will say more
        return [("", "")] * len(configs)


def _try_to_prepare(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    from hydrant.build import prepare  # brings in torch

    found = list[tuple[str, str]]()
    for config in configs:
        try:
            prepare(config)
        except ConfigError as error:
            found.append((error.key, error.reason))
        except HydrantError:  # damaged data: of no other job's concern
            found.append(("", ""))
        else:
            found.append(("", ""))
    return found


def _report(result: Result) -> int:
    """Say on stderr what went wrong, if anything; the exit status."""
    if result.message:
        sys.stdout.flush()
        label = "" if result.exit_status > 128 else "error: "
        print(f"{label}{' '.join(result.message.split())}", file=sys.stderr, flush=True)
    return result.exit_status


def _slow_imports(config: Mapping[str, Any]) -> Iterator[str]:
    """Modules that the parts of a config import when they are built, as they declare in `PRELOAD`."""
    yield from ("hydrant.run", "torch._dynamo", "matplotlib.backends.backend_agg")
    for key, target in targets_of(config):
        module = sys.modules[locate(target, key).__module__]
        yield from getattr(module, "PRELOAD", ())


def _close_sweep(folder: Path, started: float) -> bool:
    """Write and print the table of a sweep; whether any job failed since `started`."""
    runs = runs_of_sweep(folder)
    if not runs:
        return False
    write_sweep_csv(folder, runs)
    _print_table(folder, runs)
    return any(r.status == "failed" and (r.path / "summary.json").stat().st_mtime >= started for r in runs)


def _print_table(folder: Path, runs: Sequence[RunFolder]) -> None:
    """A line a run: the choices in which the runs differ, how it ended, its best value or its error."""
    labels = [" ".join(f"{k}={v}" for k, v in own.items()) or run.path.name for run, own in differing(runs)]
    width = max(map(len, labels))
    print(f"\n{folder}: {len(runs)} runs, see {folder / 'sweep.csv'}")
    for run, label in zip(runs, labels, strict=True):
        best = run.summary.get("best")
        shown = f"{best['metric']} {best['value']:.4f} at update {best['num_updates']}" if best else ""
        print(f"  {label:<{width}}  {run.status:<10} {shown}{' ' if run.error else ''}{run.error}")
