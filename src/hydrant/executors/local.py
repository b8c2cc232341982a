"""Several jobs at once on this machine, each with GPUs of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from hydrant.errors import ConfigError
from hydrant.executors.base import Work, need, preload
from hydrant.gpus import held, visible_gpus
from hydrant.isolation import forwarding
from hydrant.job import Result
from hydrant.launchers import num_cores

_Ended = tuple[Work, Result | None]
"""A job, and what it gave: nothing where it was asked to stop before it began."""


class Local:
    """Threads of this process, each of which minds one job at a time.

    Args:
        num_jobs: at once; null: as many as there are GPUs for, or cores where there are none.
    """

    is_elsewhere = False

    def __init__(self, num_jobs: int | None) -> None:
        self._num_jobs = checked(num_jobs)

    def prepare(self) -> None:
        share_cores(self._num_jobs)

    def run(
        self, works: Sequence[Work], stop_signal: Callable[[], int | None]
    ) -> Iterator[tuple[Work, Result]]:
        gpus = _gpus_for(works)
        for work, result in self._map(works, gpus, self._num_jobs or _fitting(works, gpus)):
            if result is not None:
                yield work, result

    def _map(self, works: Sequence[Work], gpus: Sequence[str], num_jobs: int) -> Iterator[_Ended]:
        with ThreadPoolExecutor(num_jobs) as pool:
            futures = [pool.submit(run_here, work, gpus) for work in works]
            yield from (future.result() for future in as_completed(futures))


class InTurn:
    """One job after another, as without a launcher: what they say is heard."""

    is_elsewhere = False

    def prepare(self) -> None: ...

    def run(
        self, works: Sequence[Work], stop_signal: Callable[[], int | None]
    ) -> Iterator[tuple[Work, Result]]:
        for work in works:
            if stop_signal() is None:
                work.announce()
                yield work, work.call(is_silent=work.in_table).result


class Joblib(Local):
    """The same by joblib.Parallel, whose threads they are."""

    def prepare(self) -> None:
        need("joblib", "joblib")
        super().prepare()

    def _map(self, works: Sequence[Work], gpus: Sequence[str], num_jobs: int) -> Iterator[_Ended]:
        from joblib import Parallel, delayed

        pool: Any = Parallel(n_jobs=num_jobs, backend="threading", return_as="generator_unordered")
        yield from pool(delayed(run_here)(work, gpus) for work in works)


def run_here(work: Work, gpus: Sequence[str]) -> _Ended:
    """Run a job beside others."""
    with forwarding() as signals:
        count = num_ranks(work) if gpus else 0
        with held(gpus, count, lambda: signals.signum is not None) as own:
            if signals.signum is not None:
                return work, None
            work.announce()
            variables = {"CUDA_VISIBLE_DEVICES": ",".join(own)} if gpus else {}
            return work, work.call(variables, is_silent=True).result


def num_ranks(work: Work) -> int:
    """How many ranks a job starts for itself."""
    return work.job.config["parallel"]["num_processes"]


def checked(num_jobs: Any) -> int | None:
    """Raises ConfigError for a number of jobs that cannot be."""
    if num_jobs is not None and (not isinstance(num_jobs, int) or num_jobs < 1):
        raise ConfigError("hydra.launcher.num_jobs", f"needs 1 or more, or null, not {num_jobs}")
    return num_jobs


def share_cores(num_jobs: int | None) -> None:
    """Threads of jobs that run side by side are not to wait for each other. Read when torch is imported."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(num_cores() // num_jobs, 1) if num_jobs else 1))


def _gpus_for(works: Sequence[Work]) -> list[str]:
    """Raises ConfigError where a job needs more than there are."""
    gpus = visible_gpus(preload([work.job.config for work in works]))
    most = max(map(num_ranks, works))
    if gpus and most > len(gpus):
        raise ConfigError(
            "parallel.num_processes", f"{most} ranks need as many GPUs, and {len(gpus)} are here"
        )
    return gpus


def _fitting(works: Sequence[Work], gpus: Sequence[str]) -> int:
    return max((len(gpus) or num_cores()) // max(map(num_ranks, works)), 1)
