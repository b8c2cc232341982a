"""Jobs as SLURM jobs, through submitit, which requeues a job that SLURM preempts or that runs out of time."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydrant.config.distribution import require_extra
from hydrant.config.flat import differences
from hydrant.errors import ConfigError, first_line
from hydrant.runs.console import relative, say
from hydrant.runs.folder import read_run
from hydrant.runs.job import Job
from hydrant.runs.outcome import RunResult
from hydrant.runs.resume import describe_changes
from hydrant.sweeps.executors.base import JobResults, StopSignal, SweepJob, result_from_folder
from hydrant.sweeps.executors.local import check_num_jobs

_POLL_SECONDS = 0.5
_SQUEUE_SECONDS = 10
"""Between two calls of squeue, because each call is work for the controller of the whole cluster."""
_SHARED = ("timeout_min", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb")
"""Parameters that submitit has for every cluster. The others get the prefix `slurm_`."""


class Slurm:
    """Submits the jobs as one SLURM array. They continue if this process dies; a signal to this process cancels them.

    Args:
        num_jobs: at once; null: as many as SLURM starts.
        cluster: slurm; local: processes of submitit on this machine.
        max_requeues: how often a job may run out of time and be requeued.
        parameters: of submitit; its defaults apply to those that are null.
    """

    is_remote = True

    def __init__(self, num_jobs: int | None, cluster: str, max_requeues: int, **parameters: Any) -> None:
        self._num_jobs, self._cluster, self._max_requeues = check_num_jobs(num_jobs), cluster, max_requeues
        self._parameters = parameters

    def prepare(self) -> None:
        require_extra("slurm", ["submitit"], "hydra/launcher", "slurm")
        if self._cluster not in ("slurm", "local"):
            raise ConfigError("hydra.launcher.cluster", f"needs slurm or local, not {self._cluster}")
        if self._cluster == "slurm" and shutil.which("sbatch") is None:
            message = "slurm needs sbatch, which is not on this machine"
            raise ConfigError("hydra/launcher", f"{message}; hydra/launcher=local runs the jobs here")

    def run(self, sweep_jobs: Sequence[SweepJob], stop_signal: StopSignal) -> JobResults:
        running = self._find_submitted(sweep_jobs)
        if new := [sweep_job for sweep_job in sweep_jobs if sweep_job not in running.values()]:
            running |= dict(zip(self._submit(new), new, strict=True))
        is_stopping, last_squeue = False, time.monotonic()
        while running:
            if stop_signal() is not None and not is_stopping:
                is_stopping = True
                for slurm_job in running:
                    _cancel(slurm_job)
            queued_ids = None
            if time.monotonic() > last_squeue + _SQUEUE_SECONDS:
                queued_ids, last_squeue = _queued_ids(), time.monotonic()
            for slurm_job in [slurm_job for slurm_job in running if _has_ended(slurm_job, queued_ids)]:
                sweep_job = running.pop(slurm_job)
                slurm_job.paths.submitted_pickle.unlink(missing_ok=True)  # the config in it has secrets
                if not is_stopping or read_run(sweep_job.job.folder).has_begun:
                    yield sweep_job, _result(slurm_job, sweep_job)
            time.sleep(_POLL_SECONDS)

    def _find_submitted(self, sweep_jobs: Sequence[SweepJob]) -> dict[Any, SweepJob]:
        """Return the SLURM jobs that have not ended and that an earlier process of this sweep submitted before it died.

        Raises:
            ConfigError: one of them has another config.
        """
        import submitit

        if self._cluster != "slurm" or not (folder := _submitit_folder(sweep_jobs)).exists():
            return {}
        by_folder = {sweep_job.job.folder.resolve(): sweep_job for sweep_job in sweep_jobs}
        submitted: dict[Any, SweepJob] = {}
        for job_id in sorted(_queued_ids() or ()):
            slurm_job = submitit.SlurmJob(folder / "%j", job_id)
            if not slurm_job.paths.submitted_pickle.exists():  # it belongs to another sweep
                continue
            function: Any = slurm_job.submission().function
            job: Job = function.sweep_job.job
            if (sweep_job := by_folder.get(job.folder.resolve())) is None:
                continue
            if changed := differences(job.config, sweep_job.job.config):
                message = f"SLURM job {job_id} still runs {job.folder.name} with another config"
                changes = describe_changes(changed)
                raise ConfigError("resume", f"{message} ({changes}); wait for it, or scancel {job_id}")
            submitted[slurm_job] = sweep_job
            sweep_job.announce(f" (slurm job {job_id}, already submitted)")
        return submitted

    def _submit(self, sweep_jobs: Sequence[SweepJob]) -> list[Any]:
        import submitit
        from submitit.core.utils import FailedJobError

        folder = _submitit_folder(sweep_jobs)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parameters = {
            key if key in _SHARED else f"slurm_{key}": value
            for key, value in self._parameters.items()
            if value is not None
        }
        if self._num_jobs is not None:
            parameters["slurm_array_parallelism"] = self._num_jobs
        try:
            executor = submitit.AutoExecutor(
                folder / "%j", cluster=self._cluster, slurm_max_num_timeout=self._max_requeues
            )
            executor.update_parameters(name=folder.parent.name, **parameters)
            slurm_jobs = executor.submit_array([_Requeueable(sweep_job) for sweep_job in sweep_jobs])
        except (ValueError, TypeError, NameError, FailedJobError) as error:
            raise ConfigError("hydra.launcher", f"submitit: {first_line(error)}") from error
        for slurm_job, sweep_job in zip(slurm_jobs, sweep_jobs, strict=True):
            sweep_job.announce(f" ({self._cluster} job {slurm_job.job_id})")
        if not sweep_jobs[0].in_table:
            say(f"output of the jobs: {relative(folder)}; Ctrl-C here stops them")
        return slurm_jobs


class _Requeueable:
    """The function that a SLURM job calls. submitit calls `checkpoint` on SIGUSR2 and submits what it returns."""

    def __init__(self, sweep_job: SweepJob) -> None:
        self.sweep_job = sweep_job

    def __call__(self) -> RunResult:
        call = self.sweep_job.run()
        if call.signum is not None and call.result.exit_status > 128:
            signal.raise_signal(call.signum)  # submitit's handler, disabled during the run, requeues the job
        return call.result

    def checkpoint(self) -> Any:
        """Return the same call: the run in its folder continues."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _submitit_folder(sweep_jobs: Sequence[SweepJob]) -> Path:
    """Return the folder of submitit's files for the jobs of a sweep."""
    job = sweep_jobs[0].job
    return (job.sweep_folder or job.folder.parent) / ".submitit"


def _cancel(slurm_job: Any) -> None:
    """Send SIGTERM to a job."""
    if hasattr(slurm_job, "_process"):  # of submitit's local cluster, whose `cancel` sends SIGINT
        slurm_job._process.send_signal(signal.SIGTERM)
    else:
        slurm_job.cancel(check=False)


def _has_ended(slurm_job: Any, queued_ids: set[str] | None) -> bool:
    if slurm_job.paths.result_pickle.exists() or hasattr(slurm_job, "_process"):
        return slurm_job.task(0).done()
    return queued_ids is not None and slurm_job.job_id not in queued_ids


def _queued_ids() -> set[str] | None:
    """Return the IDs of this user's waiting and running SLURM jobs; None if squeue fails."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return set(done.stdout.split()) if done.returncode == 0 else None


def _result(slurm_job: Any, sweep_job: SweepJob) -> RunResult:
    task = slurm_job.task(0)  # rank 0
    if not task.paths.result_pickle.exists():
        message = f"SLURM job {slurm_job.job_id} ended without a result, see {task.paths.stderr}"
        return result_from_folder(sweep_job.job, message)
    error = task.exception()
    return result_from_folder(sweep_job.job, first_line(error)) if error else task.result()
