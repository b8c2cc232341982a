"""The jobs of a sweep, each in a process of its own, and the table of what came of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.config.targets import locate, targets_of
from hydrant.errors import ConfigError, JobFailed
from hydrant.identity import write_records
from hydrant.isolation import ProcessDied, call_isolated
from hydrant.job import Job, Result, remove_if_empty, report
from hydrant.runs import (
    RunFolder,
    choices_in,
    differing,
    mark_failed,
    read_run,
    runs_of_sweep,
    write_sweep_csv,
)

_ALIKE = ("name", "seed")
"""Keys that do not decide whether a run can start."""


class Sweep:
    """What one `--multirun` did in this process."""

    def __init__(self) -> None:
        self._started = time.time()
        self._refused: list[RunFolder] = []

    def run(self, job: Job, number: int) -> float | None:
        """Run one job; its value, for sweepers that search.

        Raises:
            JobFailed: after saying why.
            SystemExit: the sweep was asked to stop, and its job has saved its state.
        """
        print(f"job {number}: {job.folder.name}", flush=True)
        began = time.time()
        try:
            result = call_isolated(_execute, (job,), preload=sorted(_slow_imports(job.config)))
        except ProcessDied as death:
            result = Result(1, None, str(death))
        if result.exit_status == 0:
            return result.value
        if result.exit_status == ConfigError.exit_status:
            self._note_refused(job, result)
        elif result.exit_status < 128:
            _note_failed(job, result, began)
        print(f"job {number}: ", end="", file=sys.stderr)
        status = report(result)
        if status > 128:
            raise SystemExit(status)
        raise JobFailed(f"{job.folder.name}: {result.message}")

    def close(self, folder: Path) -> bool:
        """Write and print the table of a sweep; whether any job failed since this began."""
        refused = {run.path for run in self._refused}
        runs = [run for run in runs_of_sweep(folder) if run.path.resolve() not in refused] + self._refused
        if not runs:
            return False
        runs.sort(key=lambda run: run.path.name)
        write_sweep_csv(folder, runs)
        _print_table(folder, runs)
        return bool(refused) or any(run.status == "failed" and run.changed >= self._started for run in runs)

    def _note_refused(self, job: Job, result: Result) -> None:
        """Whatever its folder holds from before, this job did not run."""
        remove_if_empty([job.folder])
        summary = {"status": "refused", "error": {"message": result.message}}
        choices = choices_in(job.records["overrides.yaml"])
        self._refused.append(RunFolder(job.folder.resolve(), choices, summary))


def refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(key, reason) why each checked config cannot run on this machine, ("", "") where it can."""
    keys = [repr(sorted((k, v) for k, v in config.items() if k not in _ALIKE)) for config in configs]
    distinct = dict(zip(keys, configs, strict=True))
    preload = sorted({module for config in configs for module in _slow_imports(config)})
    try:
        found = call_isolated(_refusals, (list(distinct.values()),), preload=preload)
    except ProcessDied:  # the job itself will say more
        return [("", "")] * len(configs)
    refused = dict(zip(distinct, found, strict=True))
    return [refused[key] for key in keys]


def _note_failed(job: Job, result: Result, began: float) -> None:
    """Write what the job could not write itself, because it died or failed before it had its folder."""
    run = read_run(job.folder)
    if run.status != "failed" or run.changed < began:
        write_records(job)
        mark_failed(job.folder, result.message)


def _execute(job: Job) -> Result:
    from hydrant.run import execute  # brings in torch

    return execute(job)


def _refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [_refusal(config) for config in configs]


def _refusal(config: Mapping[str, Any]) -> tuple[str, str]:
    from hydrant.build import prepare  # brings in torch

    try:
        prepare(config)
    except ConfigError as error:
        return error.key, error.reason
    except Exception:  # damaged data, say: of no other job's concern, and its own job tells it
        return "", ""
    return "", ""


def _slow_imports(config: Mapping[str, Any]) -> Iterator[str]:
    """Modules that the parts of a config import when they are built, as they declare in `PRELOAD`."""
    yield from ("hydrant.run", "torch._dynamo", "matplotlib.backends.backend_agg")
    for key, target in targets_of(config):
        module = sys.modules[locate(target, key).__module__]
        yield from getattr(module, "PRELOAD", ())


def _print_table(folder: Path, runs: Sequence[RunFolder]) -> None:
    """A line a run: the choices in which the runs differ, how it ended, its best value or its error."""
    labels = [" ".join(f"{k}={v}" for k, v in own.items()) or run.path.name for run, own in differing(runs)]
    width = max(map(len, labels))
    print(f"\n{folder}: {len(runs)} runs, see {folder / 'sweep.csv'}")
    for run, label in zip(runs, labels, strict=True):
        best = run.summary.get("best")
        shown = f"{best['metric']} {best['value']:.4f} at update {best['num_updates']}" if best else ""
        print(f"  {label:<{width}}  {run.status:<10} {shown}{' ' if run.error else ''}{run.error}")
