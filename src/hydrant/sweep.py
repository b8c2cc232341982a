"""The jobs of a sweep, each in a process of its own, and the table of what came of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, JobFailed
from hydrant.executors.base import Executor, Work, preload
from hydrant.identity import write_records
from hydrant.isolation import ProcessDied, Stopped, call_isolated, forwarding
from hydrant.job import Job, Result, relative, remove_if_empty, report, say
from hydrant.redaction import redacted
from hydrant.runs import (
    RunFolder,
    choices_in,
    differing,
    figures,
    mark_failed,
    read_run,
    runs_of_sweep,
    write_sweep_csv,
)

_ALIKE = ("name", "seed")
"""Keys that do not decide whether a run can start."""


class Sweep:
    """What one `--multirun` does in this process."""

    def __init__(self) -> None:
        self._began = time.time()
        self._jobs: dict[Path, dict[str, str]] = {}  # folder -> choices, in the order of the jobs
        self._refused: dict[Path, str] = {}
        self._claims: dict[str, None] = {}  # of the jobs, each once
        self._gathered: list[Work] | None = None
        self.has_run = False
        self.may_fail = False  # jobs of a search, which goes on without them
        self.outcome: list[str] = []  # lines to end with

    def plan(self, jobs: Mapping[Path, Sequence[str]]) -> None:
        """Take the folders and the overrides of all jobs, before the first one starts."""
        self._jobs |= {folder: choices_in(redacted(list(overrides))) for folder, overrides in jobs.items()}

    def run(self, job: Job, number: int, environment: Mapping[str, str]) -> float | None:
        """Run one job, or note it for `run_all`; its value, for sweepers that search.

        Raises:
            JobFailed: after saying why.
            Stopped: a signal arrived meanwhile; the job has saved its state, or is done.
        """
        self.plan({job.folder.resolve(): job.overrides})
        if job.config["claim"] is not None:
            self._claims[job.config["claim"]] = None
        work = Work(number, job, environment)
        if self._gathered is not None:
            self._gathered.append(work)
            return None
        say(f"job {number}: {job.folder.name}")
        self.has_run, began = True, time.time()
        answer = work.call()
        result, signum = answer.result, answer.signum
        self.settle(work, result, began)
        if signum is not None or result.exit_status > 128:
            raise Stopped(max(result.exit_status, 128 + (signum or 0)))
        if result.exit_status:
            raise JobFailed(f"{job.folder.name}: {result.message}")
        return result.value

    @contextmanager
    def gathering(self) -> Generator[list[Work]]:
        """While it lasts, `run` only notes the jobs."""
        self._gathered = works = list[Work]()
        try:
            yield works
        finally:
            self._gathered = None

    def run_all(self, works: Sequence[Work], executor: Executor) -> dict[int, Result]:
        """Run jobs side by side; their results by number.

        Raises:
            Stopped: a signal arrived meanwhile, here or at a job; what ran has saved its state, or is done.
        """
        self.has_run, began = True, time.time()
        done = _finished_before(works) if executor.is_elsewhere else {}
        rest = [work for work in works if work.number not in done]
        try:
            with forwarding() as signals:
                for work, result in executor.run(rest, lambda: signals.signum) if rest else ():
                    done[work.number] = result
                    self.settle(work, result, began)
                    if not result.exit_status:
                        say(f"job {work.number}: finished")
        finally:
            remove_if_empty([work.job.folder for work in works])
        if signals.signum is not None:
            raise Stopped(128 + signals.signum)
        if stopped := [result.exit_status for result in done.values() if result.exit_status > 128]:
            raise Stopped(max(stopped))
        return done

    def settle(self, work: Work, result: Result, began: float) -> None:
        """Note and tell what came of a job."""
        job = work.job
        if result.exit_status == ConfigError.exit_status:
            remove_if_empty([job.folder])
            self._refused[job.folder.resolve()] = result.message
        elif 0 < result.exit_status < 128:
            _note_failed(job, result, began)
        if job.sweep_folder is not None:
            self._write_table(job.sweep_folder, self._runs(job.sweep_folder))
        report(result, f"job {work.number}: ")

    def close(self, folder: Path) -> bool:
        """Write and print the table of a sweep; whether any job failed since this began."""
        runs = self._runs(folder)
        if not any(run.has_begun for run in runs):
            return False
        self._write_table(folder, runs)
        _print_table(folder, runs, list(self._claims))
        for line in self.outcome:
            say(line)
        is_any_failed = any(run.status == "failed" and run.changed >= self._began for run in runs)
        return not self.may_fail and (bool(self._refused) or is_any_failed)

    def _runs(self, folder: Path) -> list[RunFolder]:
        """Every run of the sweep, in the order of the jobs; those of an earlier, larger grid follow."""
        own = [self._read(path) for path in self._jobs]
        return own + [run for run in runs_of_sweep(folder) if run.path.resolve() not in self._jobs]

    def _write_table(self, folder: Path, runs: Sequence[RunFolder]) -> None:
        try:
            write_sweep_csv(folder, runs)
        except OSError as error:
            print(f"{folder}/sweep.csv cannot be written: {error.strerror or error}", file=sys.stderr)

    def _read(self, path: Path) -> RunFolder:
        if path in self._refused:  # whatever its folder holds from before, this job did not run
            summary = {"status": "refused", "error": {"message": self._refused[path]}}
            return RunFolder(path, self._jobs[path], summary)
        return RunFolder(path, self._jobs[path], read_run(path).summary)


current: ContextVar[Sweep] = ContextVar("sweep")
"""The sweep that this process is busy with: Hydra builds its sweepers itself."""


def refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(key, reason) why each checked config cannot run on this machine, ("", "") where it can.

    Raises:
        Stopped: a signal arrived meanwhile.
    """
    keys = [repr(sorted((k, v) for k, v in config.items() if k not in _ALIKE)) for config in configs]
    distinct = dict(zip(keys, configs, strict=True))
    answer = call_isolated(_refusals, (list(distinct.values()),), preload=preload(configs))
    if answer.signum is not None:
        print("stopped by a signal before the first job", file=sys.stderr)
        raise Stopped(128 + answer.signum)
    if isinstance(answer.result, ProcessDied):  # the job itself will say more
        return [("", "")] * len(configs)
    refused = dict(zip(distinct, answer.result, strict=True))
    return [refused[key] for key in keys]


def _note_failed(job: Job, result: Result, began: float) -> None:
    """Write what the job could not write itself, because it died or failed before it had its folder."""
    run = read_run(job.folder)
    if run.status == "failed" and run.changed >= began:
        return
    try:
        write_records(job)
        mark_failed(job.folder, result.message)
    except OSError as error:
        print(f"{job.folder} cannot be written: {error.strerror or error}", file=sys.stderr)


def _finished_before(works: Sequence[Work]) -> dict[int, Result]:
    """The results of those that need not run again, by number."""
    begun = [work for work in works if (work.job.folder / "summary.json").exists()]
    if not begun:
        return {}
    jobs = [work.job for work in begun]
    answer = call_isolated(_finished, (jobs,), preload([job.config for job in jobs]))
    found: Sequence[Result | None] = [] if isinstance(answer.result, ProcessDied) else answer.result
    return {work.number: result for work, result in zip(begun, found, strict=False) if result is not None}


def _finished(jobs: Sequence[Job]) -> list[Result | None]:
    from hydrant.run import finished_before  # brings in torch

    return [finished_before(job) for job in jobs]


def _refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [_refusal(config) for config in configs]


def _refusal(config: Mapping[str, Any]) -> tuple[str, str]:
    from hydrant.build import prepare  # brings in torch

    try:
        prepare(config, is_plan=True)
    except ConfigError as error:
        return error.key, error.reason
    except Exception:  # damaged data, say: of no other job's concern, and its own job tells it
        return "", ""
    return "", ""


def _print_table(folder: Path, runs: Sequence[RunFolder], claims: Sequence[str]) -> None:
    """A line a run: the choices in which the runs differ, how it ended, its best value or its error.

    Where something is claimed of them, that too, and what it can be held against.
    """
    labels = [" ".join(f"{k}={v}" for k, v in own.items()) or run.path.name for run, own in differing(runs)]
    width = max(map(len, labels))
    folder = Path(relative(folder))
    say(f"\n{folder}: {len(runs)} run{'s' if len(runs) > 1 else ''}, see {folder / 'sweep.csv'}")
    for run, label in zip(runs, labels, strict=True):
        best = run.summary.get("best") or {}
        value = best.get("value")
        shown = [] if value is None else [f"{best['metric']} {value:.4f} at update {best['num_updates']}"]
        shown += [told for told in (run.error, figures(run.summary) if claims else "") if told]
        say(f"  {label:<{width}}  {run.status:<11} {'; '.join(shown)}")
    for claim in claims:
        say(f"claim: {claim}")
