"""`train`: one run in this process, or with `--multirun` a sweep, each job in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hydrant.config import ENTRY, check, choices_of, conf_dir, register
from hydrant.config.targets import locate, targets_of
from hydrant.errors import ConfigError, JobFailed
from hydrant.isolation import ProcessDied, call_isolated
from hydrant.job import Job, Result, remove_if_empty
from hydrant.runs import RunFolder, runs_of_sweep, write_sweep_csv


def main(arguments: Sequence[str]) -> int:
    """Train with these overrides; the exit status."""
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach `hydrant.cli` whole, which words them
    # Hydra's parser wants its flags before the overrides.
    sys.argv[1:] = sorted(arguments, key=lambda word: word not in ("-m", "--multirun"))
    started = time.time()
    results: list[Result] = []

    def task(config: DictConfig) -> float | None:
        settings = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN:
            return _run_isolated(_job(config, settings), settings.job.num)
        results.append(_execute(_job(config, settings)))
        return results[0].value

    stopped = 0
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=ENTRY)(task)()
    except JobFailed:
        pass  # was told when it happened, and is told again in the table
    except KeyboardInterrupt:
        stopped = 130
    except SystemExit as request:
        stopped = int(request.code or 0)
    except OSError as error:
        raise ConfigError("hydra.run.dir", f"the run folder cannot be made: {error}") from error
    if results:
        return _report(results[0])
    failed = any([_close_sweep(folder, started) for folder in SweepNotes.folders])
    return stopped or int(failed)


class SweepNotes(Callback):
    """Tells `main` where the sweep lies that Hydra started (`hydra.callbacks` in conf/train.yaml)."""

    folders: ClassVar[list[Path]] = []

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self.folders.append(Path(config.hydra.sweep.dir))


def _job(config: DictConfig, settings: Any) -> Job:
    records = {
        "config.yaml": OmegaConf.to_yaml(config),
        "hydra.yaml": OmegaConf.to_yaml(OmegaConf.create({"hydra": settings})),
        "overrides.yaml": OmegaConf.to_yaml(settings.overrides.task),
    }
    folder, choices = Path(settings.runtime.output_dir), choices_of(settings.runtime.choices)
    try:
        return Job(check(config), folder, choices, records, settings.mode == RunMode.MULTIRUN)
    except ConfigError:
        remove_if_empty(folder)
        raise


def _execute(job: Job) -> Result:
    from hydrant.run import execute  # brings in torch

    return execute(job)


def _run_isolated(job: Job, number: int) -> float | None:
    """One job of a sweep; raises JobFailed after saying why."""
    print(f"job {number}: {job.folder.name}", flush=True)
    try:
        result = call_isolated(_execute, (job,), preload=sorted(_slow_imports(job.config)))
    except ProcessDied as death:
        result = Result(1, None, str(death))
    if result.exit_status == 0:
        return result.value
    print(f"job {number}: ", end="", file=sys.stderr)
    status = _report(result)
    if status > 128:  # the sweep was asked to stop, and its job has saved its state
        raise SystemExit(status)
    raise JobFailed(f"{job.folder.name}: {result.message}")


def _report(result: Result) -> int:
    """Say on stderr what went wrong, if anything; the exit status."""
    if result.message:
        sys.stdout.flush()
        label = "" if result.exit_status > 128 else "error: "
        print(f"{label}{result.message}", file=sys.stderr, flush=True)
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
    width = max(len(run.path.name) for run in runs)
    print(f"\n{folder}: {len(runs)} runs, see {folder / 'sweep.csv'}")
    for run in runs:
        best = run.summary.get("best")
        shown = f"{best['metric']} {best['value']:.4f} at update {best['num_updates']}" if best else ""
        print(f"  {run.path.name:<{width}}  {run.status:<10} {shown}{' ' if run.error else ''}{run.error}")
