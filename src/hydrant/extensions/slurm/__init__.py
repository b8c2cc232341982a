"""Units as SLURM jobs through submitit, and those of this user that wait or run.

submitit requeues a job that SLURM preempts or that runs out of time.
"""

import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Container, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hydrant.config.flat import differences
from hydrant.errors import ConfigError, first_line
from hydrant.files.plain_values import NotNegativeInt, PositiveInt
from hydrant.installation import require_extra
from hydrant.runs.folder import RunFolder, is_run_folder, runs_of_sweep
from hydrant.runs.resume import describe_changes
from hydrant.signals import sigint_blocked
from hydrant.sweeps.executors.base import CannotStop, Ended, Executor, StopSignal, Unit, UnitsEnded
from hydrant.terminal.console import notice, relative, say

_SUBMITTED = ".submitit"
"""The folder, in that of a sweep, of submitit's files."""


def queued() -> dict[str, str] | None:
    """Return this user's waiting and running jobs: the script of each, by its id; None if squeue fails."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i %o"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return _unknown(f"squeue cannot be called ({error.strerror})")
    if done.returncode:
        said = " ".join(done.stderr.split())
        return _unknown(f"squeue ended with {done.returncode}{said and f': {said}'}")
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.strip()]
    return {row[0]: "".join(row[1:]).strip() for row in rows}


@cache
def _unknown(reason: str) -> None:
    """Print once why the queue is not known."""
    notice(f"warning: {reason}, so it is not known which SLURM jobs wait or run")


def _job_of(run: RunFolder) -> str:
    """Return the id of the job that trains a run, by its summary."""
    return str((run.summary.get("environment") or {}).get("slurm_job"))


_POLL_SECONDS = 0.5
_SQUEUE_SECONDS = 10
"""The seconds between two calls of squeue, because each call is work for the controller of the whole cluster."""
_COMMANDS = ("sbatch", "squeue", "scancel", "srun")
_SHARED = ("timeout_min", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb")
"""Parameters that submitit has for every cluster. The others get the prefix `slurm_`."""


class Slurm(Executor):
    """Submits the units as one SLURM array. They continue if this process is killed; a signal or an error here cancels
    them.

    Args:
        num_jobs: jobs at once; null: as many as SLURM starts.
        cluster: `slurm`, or `local`: processes of submitit on this machine, to try the launcher without SLURM.
        max_requeues: how often a job may be requeued after it ran out of time.
        parameters: those of submitit; null: its default.
    """

    is_remote = True

    def __init__(
        self,
        num_jobs: PositiveInt | None,
        cluster: Literal["slurm", "local"],
        max_requeues: NotNegativeInt,
        **parameters: Any,
    ) -> None:
        self.num_jobs, self._cluster, self._max_requeues = num_jobs, cluster, max_requeues
        self._parameters = parameters

    def prepare(self) -> None:
        require_extra("slurm", ["submitit"], "hydra/launcher", "slurm")
        if self._cluster == "slurm" and (missing := [name for name in _COMMANDS if not shutil.which(name)]):
            message = f"slurm needs {', '.join(missing)}, which this machine does not have"
            raise ConfigError("hydra/launcher", message, remedy="hydra/launcher=local runs the jobs here")

    @staticmethod
    def cancel(folder: Path) -> list[str]:
        """Let SLURM cancel the jobs of a sweep, or the job that trains a run of it; return them.

        It sends SIGTERM, by which they save, and ends them half a minute later.

        Raises:
            ConfigError: the job trains other runs too.
            CannotStop: squeue or scancel fails.
        """
        # The queue knows where a job comes from, not the summary.
        submitted = ((folder.parent if is_run_folder(folder) else folder) / _SUBMITTED).resolve()
        if not submitted.is_dir():
            return []
        if (known := queued()) is None:
            raise CannotStop("SLURM does not say which jobs wait or run; try it again")
        jobs = sorted(number for number, script in known.items() if Path(script).parent == submitted)
        if is_run_folder(folder):
            jobs = [job for job in jobs if job == _job_of(RunFolder(folder))]
            together = [run for run in runs_of_sweep(folder.parent) if _job_of(run) in jobs]
            if len(together) > 1:
                message = f"{relative(folder)} is one of {len(together)} runs that train in one SLURM job"
                sweep = shlex.quote(relative(folder.parent))
                raise ConfigError("FOLDER", message, remedy=f"stop them together: hydrant stop {sweep}")
        if jobs:
            done = subprocess.run(["scancel", *jobs], capture_output=True, text=True, check=False)
            if done.returncode:
                reason = " ".join(done.stderr.split())
                raise CannotStop(f"scancel {' '.join(jobs)} has failed ({reason}); try it again")
        return [f"SLURM job {job}" for job in jobs]

    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        running = self._find_submitted(units)
        try:
            folders = {job.folder for unit in running.values() for job in unit.jobs}
            if new := [rest for unit in units if (rest := unit.without(folders)).jobs]:
                self._submit(new, running)
            yield from self._wait_for(running, stop_signal)
        except BaseException:
            if running:
                jobs = f"{len(running)} submitted job{'s' if len(running) > 1 else ''}"
                notice(f"an error ends the sweep; waiting for the end of its {jobs}")
            for _ in self._wait_for(running, lambda: signal.SIGTERM):
                pass
            raise

    def _wait_for(self, running: dict[Any, Unit], stop_signal: StopSignal) -> UnitsEnded:
        """Yield running units when they end, and remove them from `running`."""
        is_stopping, last_squeue = False, time.monotonic()
        while running:
            if stop_signal() is not None and not (is_stopping and self._cluster == "slurm"):
                is_stopping = True
                for slurm_job in running:
                    # On this machine again and again, because submitit ignores signals while it starts.
                    _cancel(slurm_job)
            queued_ids = None
            if self._cluster == "slurm" and time.monotonic() > last_squeue + _SQUEUE_SECONDS:
                queued_ids, last_squeue = queued(), time.monotonic()
            for slurm_job in [slurm_job for slurm_job in running if _has_ended(slurm_job, queued_ids)]:
                unit = running.pop(slurm_job)
                slurm_job.paths.submitted_pickle.unlink(missing_ok=True)  # the config in it has secrets
                yield unit, _result(slurm_job, unit)
            time.sleep(_POLL_SECONDS)

    def _find_submitted(self, units: Sequence[Unit]) -> dict[Any, Unit]:
        """Return the SLURM jobs that have not ended and that an earlier process of this sweep submitted before it died.

        Raises:
            ConfigError: one of them has another config.
        """
        import submitit

        if self._cluster != "slurm" or not (folder := _submitit_folder(units)).exists():
            return {}
        by_folder = {job.folder: job for unit in units for job in unit.jobs}
        submitted: dict[Any, Unit] = {}
        for job_id in sorted(queued() or ()):
            slurm_job = submitit.SlurmJob(folder / "%j", job_id)
            if not slurm_job.paths.submitted_pickle.exists():  # it belongs to another sweep
                continue
            function: Any = slurm_job.submission().function
            at_work = [job for job in function.unit.jobs if job.folder in by_folder]  # others are finished
            for job in at_work:
                if changed := differences(job.config, by_folder[job.folder].config):
                    message = f"SLURM job {job_id} still runs {job.folder.name} with another config"
                    message += f" ({describe_changes(changed)})"
                    raise ConfigError("resume", message, remedy=f"wait for it, or scancel {job_id}")
            if at_work:
                submitted[slurm_job] = unit = replace(
                    function.unit, jobs=[by_folder[job.folder] for job in at_work]
                )
                unit.announce(f"slurm job {job_id}, already submitted")
        return submitted

    def _submit(self, units: Sequence[Unit], running: dict[Any, Unit]) -> None:
        """Submit units and add them to `running`.

        Raises:
            ConfigError: submitit refuses the settings of the launcher, or SLURM the jobs.
        """
        folder = _submitit_folder(units)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SLURM accepts a whole array or nothing; on this machine, some processes may have started when one fails.
        batches = [units] if self._cluster == "slurm" else [[unit] for unit in units]
        try:
            # Ctrl-C ends this process alone, which then cancels the jobs; submitit would kill them within a second.
            with _remove_new_pickles(folder), sigint_blocked():
                executor = self._make_executor(folder)
                for batch in batches:
                    slurm_jobs = executor.submit_array([_Requeueable(unit) for unit in batch])
                    running |= dict(zip(slurm_jobs, batch, strict=True))
        except (ValueError, TypeError, NameError, RuntimeError) as error:
            raise ConfigError("hydra.launcher", f"submitit: {first_line(error)}") from error
        for slurm_job, unit in running.items():
            if unit in units:
                unit.announce(f"{self._cluster} job {slurm_job.job_id}")
        if not units[0].jobs[0].in_table:
            say(f"output of the jobs: {relative(folder)}; Ctrl-C here stops them")

    def _make_executor(self, folder: Path) -> Any:
        import submitit

        parameters = {
            key if key in _SHARED else f"slurm_{key}": value
            for key, value in self._parameters.items()
            if value is not None
        }
        if self.num_jobs is not None:
            parameters["slurm_array_parallelism"] = self.num_jobs
        executor = submitit.AutoExecutor(
            folder / "%j", cluster=self._cluster, slurm_max_num_timeout=self._max_requeues
        )
        executor.update_parameters(name=folder.parent.name, **parameters)
        return executor


class _Requeueable:
    """The function that a SLURM job calls. submitit calls `checkpoint` on SIGUSR2 and submits what it returns."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit

    def __call__(self) -> Ended:
        ended = self.unit.run()
        if ended.signum is not None and ended.is_stopped:
            signal.raise_signal(ended.signum)  # submitit's handler, disabled during the run, requeues the job
        return ended

    def checkpoint(self) -> Any:
        """Return the same call: the run in its folder continues."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _submitit_folder(units: Sequence[Unit]) -> Path:
    """Return the folder of submitit's files for the jobs of a sweep."""
    job = units[0].jobs[0].job
    return (job.sweep_folder or job.folder.parent) / _SUBMITTED


@contextmanager
def _remove_new_pickles(folder: Path) -> Generator[None]:
    """After an error, remove the pickles of jobs that submitit has not submitted, because they hold secrets."""
    earlier = set(folder.glob("*.pkl"))
    try:
        yield
    except BaseException:
        for pickle in set(folder.glob("*.pkl")) - earlier:
            pickle.unlink(missing_ok=True)
        raise


def _cancel(slurm_job: Any) -> None:
    """Send SIGTERM to a job."""
    if hasattr(slurm_job, "_process"):  # of submitit's local cluster, whose `cancel` sends SIGINT
        slurm_job._process.send_signal(signal.SIGTERM)
        return
    try:
        slurm_job.cancel(check=False)
    except OSError as error:
        job_id = slurm_job.job_id
        notice(f"SLURM job {job_id} may still run ({first_line(error)}); stop it with scancel {job_id}")


def _has_ended(slurm_job: Any, queued_ids: Container[str] | None) -> bool:
    if slurm_job.paths.result_pickle.exists() or hasattr(slurm_job, "_process"):
        return slurm_job.task(0).done()
    return queued_ids is not None and slurm_job.job_id not in queued_ids


def _result(slurm_job: Any, unit: Unit) -> Ended:
    task = slurm_job.task(0)  # rank 0
    if not task.paths.result_pickle.exists():
        return unit.lost(f"SLURM job {slurm_job.job_id} ended without a result, see {task.paths.stderr}")
    error = task.exception()
    return unit.lost(first_line(error)) if error else task.result()
