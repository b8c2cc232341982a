"""Jobs as tasks of a Ray cluster. The sweep's folder must have the same path on all its machines."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from hydrant.errors import ConfigError, first_line
from hydrant.files.plain_values import NotNegative, PositiveInt
from hydrant.installation import require_extra
from hydrant.sweeps.executors.base import Ended, Executor, StopSignal, Unit, UnitsEnded


class Ray(Executor):
    """Runs each unit as one task. All ranks of a run are on the same machine, which Ray chooses.

    Args:
        num_jobs: jobs at once; null: as many as the cluster has resources for.
        num_cpus: cores per rank.
        num_gpus: GPUs per rank; null: 1 if the cluster has GPUs.
        init: arguments of ray.init. Without an `address`, Ray starts a cluster on this machine.
    """

    is_remote = True

    def __init__(
        self,
        num_jobs: PositiveInt | None,
        num_cpus: NotNegative,
        num_gpus: NotNegative | None,
        init: Mapping[str, Any],
    ) -> None:
        self.num_jobs, self._num_cpus, self._num_gpus = num_jobs, num_cpus, num_gpus
        self._init = dict(init)

    def prepare(self) -> None:
        require_extra("ray", ["ray"], "hydra/launcher", "ray")
        import ray  # sets a handler for SIGTERM

        if ray.is_initialized():
            return
        try:
            ray.init(**self._init)
        except (ConnectionError, RuntimeError, ValueError, TypeError) as error:
            raise ConfigError("hydra.launcher.init", f"ray.init: {first_line(error)}") from error

    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        import ray

        waiting, running = deque(units), dict[Any, Unit]()
        is_stopping = False
        while waiting or running:
            if stop_signal() is not None and not is_stopping:
                is_stopping = True
                waiting.clear()
                for task in running:
                    ray.cancel(task)  # raises KeyboardInterrupt there, as Ctrl-C
            while waiting and len(running) < (self.num_jobs or len(units)):
                unit = waiting.popleft()
                unit.announce()
                running[self._start(unit)] = unit
            ended, _ = ray.wait(list(running), timeout=0.2) if running else ([], [])
            for task in ended:
                yield (unit := running.pop(task)), _result(task, unit)

    def _start(self, unit: Unit) -> Any:
        import ray

        num_gpus, count = self._num_gpus, unit.num_ranks
        if num_gpus is None:
            num_gpus = min(ray.cluster_resources().get("GPU", 0), 1)
        task: Any = ray.remote(num_cpus=self._num_cpus * count, num_gpus=num_gpus * count, max_retries=0)
        return task(Unit.run).remote(unit, is_silent=True)


def _result(task: Any, unit: Unit) -> Ended:
    import ray.exceptions

    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        return unit.lost(f"Ray ended it: {first_line(error)}")
