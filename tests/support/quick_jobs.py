"""Units of a sweep that only sleep. Their class is importable in the processes that submitit starts."""

import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from hydrant.runs.job import Job, RunResult
from hydrant.sweeps.executors.base import Ended, SweepJob, Unit


class QuickUnit(Unit):
    """Writes its process id into its folder and sleeps for `environment["seconds"]`, or until SIGTERM."""

    def run(self, environment: Mapping[str, str] | None = None, *, is_silent: bool = False) -> Ended:
        [job] = self.jobs
        job.folder.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        (job.folder / "pid").write_text(str(os.getpid()))
        time.sleep(float(job.environment["seconds"]))
        return Ended([RunResult.finished()])

    def without(self, folders: Collection[Path]) -> Unit:
        return self


def quick_units(sweep: Path, num_jobs: int, seconds: float) -> list[QuickUnit]:
    """Return the units of a sweep in this folder, of one job each."""
    config = {"name": "study", "parallel": {"num_processes": 1}}
    jobs = [Job(config, sweep / str(number), {}, {}, [], sweep) for number in range(num_jobs)]
    variables = {"seconds": str(seconds)}
    return [QuickUnit([SweepJob(job, (), variables, number)]) for number, job in enumerate(jobs)]
