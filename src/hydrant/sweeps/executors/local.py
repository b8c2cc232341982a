"""Jobs on this machine: one after another, or several at once, each with its own GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from hydrant.errors import ConfigError
from hydrant.runs.outcome import RunResult
from hydrant.sweeps.executors.base import JobResults, StopSignal, SweepJob, paths_to_preload
from hydrant.sweeps.fork_server.call import forward_signals
from hydrant.sweeps.gpus import reserve_gpus, visible_gpus
from hydrant.training.distributed.env import num_cores


class Sequential:
    """Runs one job after another and lets them print: the executor for Hydra's basic launcher."""

    is_remote = False
    num_processes = 1

    def prepare(self) -> None: ...

    def run(self, sweep_jobs: Sequence[SweepJob], stop_signal: StopSignal) -> JobResults:
        for sweep_job in sweep_jobs:
            if stop_signal() is not None:
                return
            sweep_job.announce()
            result = sweep_job.run(is_silent=sweep_job.in_table).result
            yield sweep_job, result
            if result.exit_status > 128:
                return


class Local:
    """Runs several jobs at once: each thread of a pool starts one job and waits for it.

    Args:
        num_jobs: jobs at once; null: as many as the GPUs suffice for, or the cores if there are no GPUs.
        jobs_per_gpu: jobs that share a GPU; 2 or more for small models, which leave most of it idle.
    """

    is_remote = False

    def __init__(self, num_jobs: int | None, jobs_per_gpu: int) -> None:
        self.num_processes = check_num_jobs(num_jobs)
        self._jobs_per_gpu = _check_jobs_per_gpu(jobs_per_gpu)

    def prepare(self) -> None:
        # Each job gets its share of the cores, so that their threads do not wait for each other. torch reads this
        # variable when it is imported.
        num_threads = max(num_cores() // self.num_processes, 1) if self.num_processes else 1
        os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))

    def run(self, sweep_jobs: Sequence[SweepJob], stop_signal: StopSignal) -> JobResults:
        gpus = visible_gpus(paths_to_preload([sweep_job.job.config for sweep_job in sweep_jobs]))
        max_ranks = max(map(num_ranks, sweep_jobs))
        if gpus and max_ranks > len(gpus):
            needed = f"{max_ranks} ranks need as many GPUs, but there are {len(gpus)}"
            raise ConfigError("parallel.num_processes", needed, remedy=f"give {len(gpus)} or fewer")
        num_jobs = self.num_processes or max((len(gpus) * self._jobs_per_gpu or num_cores()) // max_ranks, 1)
        with ThreadPoolExecutor(num_jobs) as pool:
            futures = {pool.submit(self._run_with_gpus, job, gpus): job for job in sweep_jobs}
            for future in as_completed(futures):
                if (result := future.result()) is not None:
                    yield futures[future], result

    def _run_with_gpus(self, sweep_job: SweepJob, gpus: Mapping[str, str]) -> RunResult | None:
        """Reserve a GPU per rank, if there are GPUs, and run the job on them; None if a signal arrived before."""
        with forward_signals() as signals:
            count = num_ranks(sweep_job) if gpus else 0
            with reserve_gpus(
                gpus, count, lambda: signals.signum is not None, self._jobs_per_gpu
            ) as reserved:
                if signals.signum is not None:
                    return None
                sweep_job.announce()
                variables = {"CUDA_VISIBLE_DEVICES": ",".join(reserved)} if gpus else {}
                return sweep_job.run(variables, is_silent=True).result


def num_ranks(sweep_job: SweepJob) -> int:
    """Return how many ranks the job starts."""
    return sweep_job.job.config["parallel"]["num_processes"]


def check_num_jobs(num_jobs: Any) -> int | None:
    """Return a valid `hydra.launcher.num_jobs`; raise ConfigError for any other."""
    if num_jobs is not None and (not isinstance(num_jobs, int) or num_jobs < 1):
        raise ConfigError("hydra.launcher.num_jobs", f"needs 1 or more, or null, not {num_jobs}")
    return num_jobs


def _check_jobs_per_gpu(jobs_per_gpu: Any) -> int:
    """Return a valid `hydra.launcher.jobs_per_gpu`; raise ConfigError for any other."""
    if not isinstance(jobs_per_gpu, int) or jobs_per_gpu < 1:
        raise ConfigError("hydra.launcher.jobs_per_gpu", f"needs 1 or more, not {jobs_per_gpu}")
    return jobs_per_gpu
