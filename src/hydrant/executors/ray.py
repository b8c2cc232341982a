"""Jobs as tasks of a Ray cluster, which need the run folder at the same path on all its machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hydrant.errors import ConfigError, first_line
from hydrant.executors.base import Work, need, result_in
from hydrant.executors.local import checked, num_ranks
from hydrant.job import Result
from hydrant.runs import read_run


class Ray:
    """Ray decides where; a job runs on one machine, with its ranks.

    Args:
        num_jobs: at once; null: as many as the cluster has room for.
        num_cpus: cores per rank.
        num_gpus: GPUs per rank; null: 1 where the cluster has any.
        init: arguments of ray.init; without an `address`, a cluster on this machine is started.
    """

    is_elsewhere = True

    def __init__(
        self, num_jobs: int | None, num_cpus: float, num_gpus: float | None, init: Mapping[str, Any]
    ) -> None:
        self._num_jobs, self._num_cpus, self._num_gpus = checked(num_jobs), num_cpus, num_gpus
        self._init = dict(init)

    def prepare(self) -> None:
        need("ray", "ray")
        import ray  # sets a handler for SIGTERM

        if ray.is_initialized():
            return
        try:
            ray.init(**self._init)
        except (ConnectionError, RuntimeError, ValueError, TypeError) as error:
            raise ConfigError("hydra.launcher.init", f"ray.init: {first_line(error)}") from error

    def run(
        self, works: Sequence[Work], stop_signal: Callable[[], int | None]
    ) -> Iterator[tuple[Work, Result]]:
        import ray

        waiting, running = deque(works), dict[Any, Work]()
        is_stopping = False
        while waiting or running:
            if stop_signal() is not None and not is_stopping:
                is_stopping = True
                waiting.clear()
                for task in running:
                    ray.cancel(task)  # as Ctrl-C
            while waiting and len(running) < (self._num_jobs or len(works)):
                work = waiting.popleft()
                work.announce()
                running[self._start(work)] = work
            ended, _ = ray.wait(list(running), timeout=0.2) if running else ([], [])
            for task in ended:
                work = running.pop(task)
                if not is_stopping or read_run(work.job.folder).has_begun:
                    yield work, _result(task, work)

    def _start(self, work: Work) -> Any:
        import ray

        per_rank = (
            self._num_gpus if self._num_gpus is not None else min(ray.cluster_resources().get("GPU", 0), 1)
        )
        count = num_ranks(work)
        options: dict[str, Any] = {
            "num_cpus": self._num_cpus * count,
            "num_gpus": per_rank * count,
            "max_retries": 0,
        }
        return ray.remote(**options)(_call).remote(work)


def _call(work: Work) -> Result:
    return work.call(is_silent=True).result


def _result(task: Any, work: Work) -> Result:
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(task)
    except RayError as error:
        return result_in(work.job, f"Ray ended it: {first_line(error)}")
