"""Found by Hydra: the launchers of `hydra/launcher=`, which hand the jobs of a sweep to an executor."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, JobStatus

from hydrant.errors import JobFailed
from hydrant.executors import Executor
from hydrant.executors.local import Joblib, Local
from hydrant.executors.ray import Ray
from hydrant.executors.slurm import Slurm
from hydrant.sweep import current


class ExecutorLauncher(BasicLauncher):
    """Composes all jobs here, as Hydra's own launcher; an executor runs them."""

    executor_of: ClassVar[Callable[..., Executor]]

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.executor = type(self).executor_of(**settings)

    def setup(self, **arguments: Any) -> None:
        super().setup(**arguments)
        self.executor.prepare()

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        sweep = current.get()
        with sweep.gathering() as works:
            returns = super().launch(job_overrides, initial_job_idx)
        results = sweep.run_all(works, self.executor)
        for number, job in enumerate(returns, initial_job_idx):
            if number not in results:  # refused when it was composed
                continue
            job.return_value = results[number].value
            if results[number].exit_status:
                job.status = JobStatus.FAILED
                job.return_value = JobFailed(f"job {number}: {results[number].message}")
        return returns


class LocalLauncher(ExecutorLauncher):
    executor_of = Local


class JoblibLauncher(ExecutorLauncher):
    executor_of = Joblib


class RayLauncher(ExecutorLauncher):
    executor_of = Ray


class SlurmLauncher(ExecutorLauncher):
    executor_of = Slurm
