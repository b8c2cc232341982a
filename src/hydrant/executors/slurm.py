"""Jobs as jobs of SLURM, by submitit, which asks for them again when SLURM takes their machine or time is up."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydrant.config.plain import differences
from hydrant.earlier import told_of
from hydrant.errors import ConfigError, first_line
from hydrant.executors.base import Work, need, result_in
from hydrant.executors.local import checked
from hydrant.job import Job, Result, relative, say
from hydrant.runs import read_run

_POLL_SECONDS = 0.5
_ASK_SECONDS = 10  # between questions to SLURM, which has others to answer
_SHARED = ("timeout_min", "nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node", "mem_gb")
"""Parameters that submitit has for any cluster; the others are SLURM's."""


class Slurm:
    """An array of SLURM jobs. They go on when this process dies, and are cancelled when it is asked to stop.

    Args:
        num_jobs: at once; null: as many as SLURM lets run.
        cluster: slurm; local: submitit's own processes on this machine instead.
        max_requeues: how often a job may run out of time and be asked for again.
        parameters: submitit's; those that are null are left to it.
    """

    is_elsewhere = True

    def __init__(self, num_jobs: int | None, cluster: str, max_requeues: int, **parameters: Any) -> None:
        self._num_jobs, self._cluster, self._max_requeues = checked(num_jobs), cluster, max_requeues
        self._parameters = parameters

    def prepare(self) -> None:
        need("submitit", "slurm")
        if self._cluster not in ("slurm", "local"):
            raise ConfigError("hydra.launcher.cluster", f"slurm or local, not {self._cluster}")
        if self._cluster == "slurm" and shutil.which("sbatch") is None:
            told = "slurm needs sbatch, which is not on this machine; hydra/launcher=local uses this machine alone"
            raise ConfigError("hydra/launcher", told)

    def run(
        self, works: Sequence[Work], stop_signal: Callable[[], int | None]
    ) -> Iterator[tuple[Work, Result]]:
        running = self._going_on(works)
        if rest := [work for work in works if work not in running.values()]:
            running |= dict(zip(self._submit(rest), rest, strict=True))
        is_stopping, asked = False, time.monotonic()
        while running:
            if stop_signal() is not None and not is_stopping:
                is_stopping = True
                for job in running:
                    _cancel(job)
            listed = None
            if time.monotonic() > asked + _ASK_SECONDS:
                listed, asked = _listed(), time.monotonic()
            for job in [job for job in running if _has_ended(job, listed)]:
                work = running.pop(job)
                job.paths.submitted_pickle.unlink(missing_ok=True)  # the config in it holds secrets
                if not is_stopping or read_run(work.job.folder).has_begun:
                    yield work, _result(job, work)
            time.sleep(_POLL_SECONDS)

    def _going_on(self, works: Sequence[Work]) -> dict[Any, Work]:
        """The jobs that SLURM still has of an earlier start of this sweep, whose process died.

        Raises:
            ConfigError: one of them has another config.
        """
        import submitit

        if self._cluster != "slurm" or not (folder := _folder(works)).exists():
            return {}
        of = {work.job.folder.resolve(): work for work in works}
        found: dict[Any, Work] = {}
        for number in sorted(_listed() or ()):
            job = submitit.SlurmJob(folder / "%j", number)
            if not job.paths.submitted_pickle.exists():  # of another sweep
                continue
            requeued: Any = job.submission().function
            before: Job = requeued.work.job
            work = of.get(before.folder.resolve())
            if work is None:
                continue
            if changed := differences(before.config, work.job.config):
                told = f"SLURM job {number} still runs {work.job.folder.name} with another config ({told_of(changed)})"
                raise ConfigError("resume", f"{told}; wait for it, or scancel {number}")
            found[job] = work
            work.announce(f" (slurm job {number}, which goes on)")
        return found

    def _submit(self, works: Sequence[Work]) -> list[Any]:
        import submitit
        from submitit.core.utils import FailedJobError

        folder = _folder(works)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = {key: value for key, value in self._parameters.items() if value is not None}
        own = {key if key in _SHARED else f"slurm_{key}": value for key, value in own.items()}
        if self._num_jobs is not None:
            own["slurm_array_parallelism"] = self._num_jobs
        try:
            executor = submitit.AutoExecutor(
                folder / "%j", cluster=self._cluster, slurm_max_num_timeout=self._max_requeues
            )
            executor.update_parameters(name=folder.parent.name, **own)
            jobs = executor.submit_array([_Requeued(work) for work in works])
        except (ValueError, TypeError, NameError, FailedJobError) as error:
            raise ConfigError("hydra.launcher", f"submitit: {first_line(error)}") from error
        for job, work in zip(jobs, works, strict=True):
            work.announce(f" ({self._cluster} job {job.job_id})")
        if not works[0].in_table:
            say(f"what they print goes to {relative(folder)}; Ctrl-C here stops them")
        return jobs


class _Requeued:
    """What a SLURM job calls; submitit takes the words of it that it needs."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self) -> Result:
        answer = self.work.call()
        if answer.signum is not None and answer.result.exit_status > 128:
            signal.raise_signal(answer.signum)  # submitit, which did not hear it, asks for this job again
        return answer.result

    def checkpoint(self) -> Any:
        """What a requeued job calls: the same, which continues the run in its folder."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _folder(works: Sequence[Work]) -> Path:
    """Where submitit keeps what it needs for the jobs of a sweep."""
    job = works[0].job
    return (job.sweep_folder or job.folder.parent) / ".submitit"


def _cancel(job: Any) -> None:
    """SIGTERM, after which SLURM waits a while."""
    if hasattr(job, "_process"):  # submitit's local one is told by SIGINT, which reaches nobody else
        job._process.send_signal(signal.SIGTERM)
    else:
        job.cancel(check=False)


def _has_ended(job: Any, listed: set[str] | None) -> bool:
    if job.paths.result_pickle.exists() or hasattr(job, "_process"):
        return job.task(0).done()
    return listed is not None and job.job_id not in listed


def _listed() -> set[str] | None:
    """The jobs that SLURM has, waiting or running; None where it does not answer."""
    done = subprocess.run(
        ["squeue", "--me", "--noheader", "--array", "--format=%i"],
        capture_output=True,
        text=True,
        check=False,
    )
    return set(done.stdout.split()) if done.returncode == 0 else None


def _result(job: Any, work: Work) -> Result:
    task = job.task(0)  # rank 0 speaks for all
    if not task.paths.result_pickle.exists():
        return result_in(work.job, f"SLURM job {job.job_id} ended without a result, see {task.paths.stderr}")
    return result_in(work.job, first_line(task.exception())) if task.exception() else task.result()
