"""Runs the jobs of a sweep, each in a process of its own, and says what came of them."""

import shlex
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydrant.config.metric_keys import differing_definitions
from hydrant.errors import ConfigError, FolderInUse, log_errors
from hydrant.runs import folder as run_folder
from hydrant.runs.folder import RunFolder, RunStatus
from hydrant.runs.job import Job, RunResult, report_part
from hydrant.runs.lock import exclusive
from hydrant.runs.metadata import write_records
from hydrant.signals import Stopped
from hydrant.sweeps import results_table as table
from hydrant.sweeps.executors.base import Executor, SweepJob, lane_results, result_from_folder
from hydrant.sweeps.executors.local import Sequential
from hydrant.sweeps.fork_server.call import ProcessDied, SignalForwarding, forward_signals
from hydrant.sweeps.plan import check_is_of_a_sweep
from hydrant.sweeps.preflight import call_before_jobs, is_finished
from hydrant.sweeps.progress import sparing, sweep_progress
from hydrant.sweeps.stack_plan import Lanes, StackPlan, program_of
from hydrant.terminal import console as terminal_console
from hydrant.training.checkpoint.folder import newest_checkpoint

_OUTCOMES: Mapping[str, str] = {
    RunStatus.PREEMPTED: "saved",
    RunStatus.PRUNED: "finished",
    RunStatus.STOPPED: "finished",
}
"""The words for states of runs in a sweep that was stopped, where they differ."""


_Configs = Mapping[Path, Mapping[str, Any]]
"""The checked configs of jobs, by folder."""


class Sweep:
    """The sweep that one `--multirun` command runs in this process."""

    def __init__(self) -> None:
        self.files = table.SweepFiles()
        self._failed = set[Path]()  # the folders of jobs that failed in this process
        self._mode = ""  # `best.mode` of the jobs
        self._claims: dict[str, None] = {}  # the config's `claim` of each job, without duplicates
        self._has_table = False
        self._is_brief = terminal_console.wants_json()  # a program reads what is printed at the end
        self.has_run = False
        self.max_seconds: float | None = None  # since this process began; then the jobs save and stop
        self.ended_by = ""  # the limit that has ended the sweep, for its users
        self.is_out_of_time = False
        self.may_fail = False  # a failed job of a search does not fail the sweep
        self.closing_lines: list[str] = []  # printed below the table of results
        self.result: dict[str, Any] = {}  # what a search or a study has found, for `--json`
        self.has_best = True  # whether the table of runs says something: not in a study, whose test decides
        self.same_command = "the same command"  # in words, with the folder if the sweep has no name
        self._stacks = StackPlan[Path]([])
        self._refresh = sparing(self.files.refresh)  # its time grows with the number of runs

    @contextmanager
    def active(self, folder: Path, jobs: Mapping[Path, Sequence[str]]) -> Generator[None]:
        """Plan `jobs` (overrides by folder), and show the progress of the sweep if stdout is a terminal.

        `add` adds jobs that are not planned yet. The caller holds the lock of the sweep's folder.

        Raises:
            ConfigError: the folder holds files of the user that the sweep would replace.
        """
        check_is_of_a_sweep(folder)
        self.files.jobs |= {path: table.planned(path, overrides) for path, overrides in jobs.items()}
        self.files.write_plan(folder)
        self._has_table = terminal_console.is_terminal(sys.stdout)
        with table.live_display(partial(_table, folder)) if self._has_table else nullcontext():
            yield

    def add(self, job: Job, number: int, environment: Mapping[str, str]) -> SweepJob:
        """Plan a job, if it is not planned yet, and return it for `run_all`."""
        if (path := job.folder.resolve()) not in self.files.jobs:
            self.files.jobs[path] = table.planned(path, job.overrides)
            self.files.write_plan(job.sweep_folder or path.parent)
        self.same_command, self._mode = job.same_command(), job.config["best"]["mode"]
        if job.config["claim"] is not None:
            self._claims[job.config["claim"]] = None
        return SweepJob(number, job, environment, self._has_table or self._is_brief)

    def run_all(
        self, sweep_jobs: Sequence[SweepJob], executor: Executor, lanes: Lanes = 1
    ) -> dict[int, RunResult]:
        """Run the jobs that are not finished, and return the results of all by job number.

        Args:
            sweep_jobs: the jobs.
            executor: runs them.
            lanes: the most jobs that train together.

        Raises:
            Stopped: a signal arrived here or at a job; the jobs have saved their state, or are finished.
        """
        results = {j.number: done for j in sweep_jobs if (done := _result_if_finished(j)) is not None}
        unfinished = [sweep_job for sweep_job in sweep_jobs if sweep_job.number not in results]
        if not unfinished:
            return results
        stacked = self.stack(unfinished, executor, lanes)
        try:
            with (
                forward_signals() as signals,
                self.limited(signals),
                closing(executor.run(stacked, lambda: signals.signum)) as ended,
            ):
                for first, result_of_first in ended:
                    self.has_run = True
                    self.files.count(result_of_first)
                    lanes_of_first = list(lane_results(first, result_of_first, self.earlier))
                    self.record(lanes_of_first)
                    for sweep_job, result in lanes_of_first:
                        results[sweep_job.number] = result
                        has_printed = isinstance(executor, Sequential) or self._has_table or self._is_brief
                        if not (result.exit_status or has_printed):
                            terminal_console.say(f"job {sweep_job.number}: finished")
        finally:
            run_folder.remove_if_empty([sweep_job.job.folder for sweep_job in sweep_jobs])
        if signals.signum is not None:
            raise Stopped(128 + signals.signum)
        if stopped := [result.exit_status for result in results.values() if result.exit_status > 128]:
            raise Stopped(max(stopped))
        return results

    @contextmanager
    def limited(self, signals: SignalForwarding) -> Generator[None]:
        """Stop the jobs of this block, as a signal does, when `max_seconds` are over."""
        if self.max_seconds is None:
            yield
            return

        def stop() -> None:
            self.is_out_of_time = True
            self.ended_by = f"hydra.sweeper.max_seconds={self.max_seconds:g}"
            signals.handle(signal.SIGTERM, None)

        timer = threading.Timer(max(self.max_seconds - self.files.wall_seconds, 0.0), stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # so that it does not signal what comes later

    def plan_stacks(self, configs: _Configs, executor: Executor, lanes: Lanes) -> StackPlan[Path]:
        """Plan which jobs train together; `stack` uses the plan.

        Jobs stack if their configs are the same program. Whether torch can map it over lanes is tried with two of them,
        in a process of its own.

        Args:
            configs: the checked configs of the jobs, by folder.
            executor: its `num_processes` train at once on this machine, over which `lanes=auto` spreads the jobs.
            lanes: the most lanes of a stack.

        Raises:
            Stopped: a signal arrived.
        """
        terminal_console.show_activity(f"trying which of {len(configs):,} jobs train together")
        groups = defaultdict[str, dict[Path, Mapping[str, Any]]](dict)
        for folder, config in configs.items():
            groups[program_of(config)][folder] = config
        tried = [*groups.values()], lanes, executor.num_processes
        plan = call_before_jobs([*configs.values()], _plan_groups, *tried)
        if isinstance(plan, ProcessDied):
            reason = f"trying it failed ({plan})"
            plan = StackPlan([[folder] for folder in configs], {next(iter(configs)): reason})
        places = {folder: place for place, folder in enumerate(configs)}
        stacks = sorted(plan.stacks, key=lambda stack: places[stack[0]])
        plan = StackPlan(stacks, plan.reasons, plan.errors)
        self._stacks = plan.with_errors_as_reasons() if executor.is_remote else plan
        return self._stacks

    def stack(self, sweep_jobs: Sequence[SweepJob], executor: Executor, lanes: Lanes) -> list[SweepJob]:
        """Return the first job of each stack, which has the others. Prints a plan that is new."""
        if lanes == 1 or not sweep_jobs:
            return list(sweep_jobs)
        by_folder = {sweep_job.job.folder.resolve(): sweep_job for sweep_job in sweep_jobs}
        if not by_folder.keys() <= {folder for stack in self._stacks.stacks for folder in stack}:
            self.plan_stacks({path: j.job.config for path, j in by_folder.items()}, executor, lanes)
            self.print_stacks({path: j.number for path, j in by_folder.items()})
        stacks = self._stacks.stacks
        present = [[by_folder[folder] for folder in stack if folder in by_folder] for stack in stacks]
        alike = [part for stack in present for part in _by_environment(stack)]
        return [replace(stack[0], other_lanes=stack[1:]) for stack in alike]

    def print_stacks(self, numbers: Mapping[Path, int]) -> None:
        """Print how many stacks and lanes are planned, and why the other jobs train alone.

        Args:
            numbers: those of the jobs, by folder.
        """
        for line in [] if self._is_brief else self._stacks.describe(numbers):
            terminal_console.say(line)

    def earlier(self, job: Job) -> float:
        """Return when the summary of a job was written before this start, in unix seconds; 0: never."""
        return self.files.jobs[job.folder.resolve()].earlier

    def record(self, ended: Sequence[tuple[SweepJob, RunResult]]) -> None:
        """Write the results of jobs that have ended into the files of the sweep, and print why some failed."""
        for sweep_job, result in ended:
            job = sweep_job.job
            if result.exit_status == ConfigError.exit_status:
                run_folder.remove_if_empty([job.folder])
                path = job.folder.resolve()
                self.files.jobs[path].refused = result.message
                self.files.write_plan(job.sweep_folder or path.parent)
            elif 0 < result.exit_status < 128:
                self._failed.add(job.folder.resolve())
                _record_failure(job, result, self.earlier(job))
        for folder in filter(None, {sweep_job.job.sweep_folder for sweep_job, _ in ended}):
            self._refresh(folder)
        for sweep_job, result in ended:
            report_part(result, f"job {sweep_job.number}")

    def close(self, folder: Path, *, is_stopped: bool) -> bool:
        """Write and print the table of results; return whether the sweep failed, because a job failed in it.

        `is_stopped`: a signal stopped the sweep, so what is left to train is printed too.
        """
        runs = self.files.runs(folder)
        if not any(run.has_begun for run in runs):
            for line in self.closing_lines:
                terminal_console.say(line)
            return False
        self.files.write_table(folder, runs)
        self.files.write_plan(folder)
        from hydrant.sweeps.picture import draw_curves_of

        with (
            log_errors(run_folder.SWEEP_PICTURE),
            table.print_write_errors(folder / run_folder.SWEEP_PICTURE),
        ):
            draw_curves_of(folder, runs, self._mode)
        if self._is_brief or not self.has_best:
            pass
        elif self._has_table and not self._claims:
            self._print_styled_table(folder)
        else:
            table.print_table(folder, runs, list(self._claims), self._mode)
        if is_stopped:
            terminal_console.say(self._stopped_text(runs))
        elif not self._is_brief:
            terminal_console.say("")
            mode = self._mode if self.has_best else ""
            terminal_console.say_fields(table.closing_fields(folder, runs, self.files.wall_seconds, mode))
        for line in self.closing_lines:
            terminal_console.say(line)
        has_refused = any(job.refused for job in self.files.jobs.values())
        has_failed = any(r.status == RunStatus.FAILED and r.path.resolve() in self._failed for r in runs)
        return not self.may_fail and (has_refused or has_failed)

    def plain(self, folder: Path) -> dict[str, Any]:
        """Return what the sweep has come to, in plain types: `hydrant status --json --all` has each run."""
        runs = sweep_progress(folder)
        values = [run for run in runs if run.best is not None and run.state == RunStatus.FINISHED]
        metrics = {run.metric for run in values if run.metric is not None}
        if any(differing_definitions(metric, [run.choices for run in runs]) for metric in metrics):
            values = []  # their losses are different quantities
        best = (min if self._mode == "min" else max)(values, key=lambda run: run.best or 0.0, default=None)
        troubles = [run for run in runs if run.message and run.state != RunStatus.QUEUED]
        of_jobs = {"best": best, "ended_by": self.ended_by}
        return {
            "result": self.result,
            "folder": terminal_console.relative(folder),
            "states": dict(Counter(str(run.state) for run in runs)),
            **(of_jobs if self.has_best else {}),
            "errors": [{"run": run.run, "message": run.message} for run in troubles[: table.MAX_PRINTED]],
            "wall_seconds": self.files.total[0],
            "processor_seconds": self.files.total[1],
        }

    def _print_styled_table(self, folder: Path) -> None:
        name, console = terminal_console.relative(folder), terminal_console.console()
        size = console.width, table.MAX_PRINTED + 3
        rest = f" (hydrant status {shlex.quote(name)} --all lists them)"
        runs = sweep_progress(folder)
        console.print(
            table.styled(table.render_table(name, runs, *size, self._mode, reasons_below=True, rest=rest))
        )

    def _stopped_text(self, runs: Sequence[RunFolder]) -> str:
        states = Counter(_OUTCOMES.get(run.state, run.state) for run in runs if run.path in self.files.jobs)
        shown = dict.fromkeys(["finished", "saved", "not started", *states])
        counted = ", ".join(f"{states[outcome]} {outcome}" for outcome in shown)
        return f"\nstopped: {counted}; {self.same_command} continues the sweep"


def _by_environment(sweep_jobs: Sequence[SweepJob]) -> list[list[SweepJob]]:
    """Divide jobs by the variables that they add to their process."""
    parts = dict[tuple[tuple[str, str], ...], list[SweepJob]]()
    for sweep_job in sweep_jobs:
        parts.setdefault(tuple(sorted(sweep_job.environment.items())), []).append(sweep_job)
    return list(parts.values())


def _record_failure(job: Job, result: RunResult, earlier: float) -> None:
    """Write the failure of a job that did not write it, because it died or failed before it had its folder."""
    run = RunFolder(job.folder)
    if run.status == RunStatus.FAILED and run.summary_time != earlier:
        return
    # Not if another start of this sweep has begun to train it.
    with table.print_write_errors(job.folder), suppress(FolderInUse), exclusive(job.folder):
        if (
            newest_checkpoint(job.folder / run_folder.CHECKPOINTS) is None
        ):  # else the config that trained it stays
            write_records(job)
        run_folder.mark_failed(job.folder, result.message)


def _result_if_finished(sweep_job: SweepJob) -> RunResult | None:
    """Return the recorded result of a job that is finished; None if it must run."""
    job = sweep_job.job
    if not is_finished(job.config, RunFolder(job.folder)):
        return None
    if not sweep_job.in_table:
        terminal_console.say(
            f"job {sweep_job.number}: already finished: {terminal_console.relative(job.folder)}"
        )
    return result_from_folder(job, "")


def _table(folder: Path, width: int, height: int) -> list[str]:
    return table.render_table(terminal_console.relative(folder), sweep_progress(folder), width, height)


def _plan_groups(groups: Sequence[_Configs], lanes: Lanes, num_processes: int | None) -> StackPlan[Path]:
    """Prepare and try the jobs of each group; imports torch."""
    from hydrant.config.instantiate import share_factories
    from hydrant.sweeps.stack_trial import plan_group

    stacks, reasons, errors = list[Sequence[Path]](), dict[Path, str](), dict[Path, ConfigError]()
    for group in groups:
        with share_factories():
            plan = plan_group(group, lanes, num_processes, len(groups))
        stacks += plan.stacks
        reasons |= plan.reasons
        errors |= plan.errors
    return StackPlan(stacks, reasons, errors)
