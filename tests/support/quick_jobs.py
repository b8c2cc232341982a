"""Jobs of a sweep that only sleep. Their class is importable in the processes that submitit starts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from hydrant.runs.job import Job, RunResult
from hydrant.sweeps.executors import SweepJob
from hydrant.sweeps.fork_server.call import CallResult


class QuickJob(SweepJob):
    """Writes its process id into its folder and sleeps for `environment["seconds"]`, or until SIGTERM."""

    def run(
        self, environment: Mapping[str, str] = MappingProxyType({}), *, is_silent: bool = False
    ) -> CallResult[RunResult]:
        self.job.folder.mkdir(parents=True, exist_ok=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        (self.job.folder / "pid").write_text(str(os.getpid()))
        time.sleep(float(self.environment["seconds"]))
        return CallResult(RunResult.finished(), None)


def quick_jobs(sweep: Path, num_jobs: int, seconds: float) -> list[SweepJob]:
    """Return the jobs of a sweep in this folder."""
    config = {"name": "study", "parallel": {"num_processes": 1}}
    jobs = [Job(config, sweep / str(number), {}, {}, [], sweep) for number in range(num_jobs)]
    return [QuickJob(number, job, {"seconds": str(seconds)}) for number, job in enumerate(jobs)]
