"""The jobs of a study: which are trained while the budget lasts, what they cost, and their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydrant.errors import JobFailed, NonFiniteError
from hydrant.runs.folder import RunFolder, RunStatus, read_metrics
from hydrant.sweeps.grid import ComposedJob
from hydrant.sweeps.preflight import is_finished
from hydrant.sweeps.study.budget import CPU, RUNS, UPDATES, WALL, Amounts, Budget


class BudgetSpent(Exception):
    """The next jobs do not fit into the budget."""


@dataclass
class Trials:
    """Trains jobs once, and knows what the study has used.

    Args:
        metric: whose last value is the result of a run.
        budget: of the study.
        at_once: jobs that train at the same time. So many start first if a run tells what others cost.
        compose: returns the job of some overrides; None if they make no config.
        train: trains jobs, the first of which has this number.
        before: what earlier starts of the study have used, in wall and processor seconds.
        seconds: wall and processor seconds of this start so far.
        after_batch: called when jobs have ended.
    """

    metric: str
    budget: Budget
    at_once: int
    compose: Callable[[Sequence[str]], ComposedJob | None]
    train: Callable[[Sequence[ComposedJob], int], object]
    before: Amounts
    seconds: Callable[[], tuple[float, float]]
    after_batch: Callable[[], object]
    _jobs: dict[tuple[str, ...], ComposedJob | None] = field(
        default_factory=dict[tuple[str, ...], ComposedJob | None]
    )
    _ended: set[Path] = field(default_factory=set[Path])

    def run(self, words: Sequence[Sequence[str]]) -> list[float | None]:
        """Train the jobs of these overrides, and return their results: None for a run without a finite one.

        Raises:
            BudgetSpent: the budget ended before.
            Stopped: a signal arrived.
        """
        jobs = [job for job in map(self.job, words) if job is not None]
        waiting = [job for job in jobs if not self.has_ended(job.words)]
        waiting.sort(key=lambda job: not self._is_begun(job))  # a begun one has its place in the budget
        while waiting:
            batch = waiting[: self._num_next(waiting)]
            if not batch:
                raise BudgetSpent
            self.train(batch, len(self._ended))
            self._ended |= {job.folder for job in batch}
            waiting = waiting[len(batch) :]
            self.after_batch()
        return [self.result(own) for own in words]

    def job(self, words: Sequence[str]) -> ComposedJob | None:
        key = tuple(words)
        if key not in self._jobs:
            self._jobs[key] = self.compose(words)
        return self._jobs[key]

    def result(self, words: Sequence[str]) -> float | None:
        """Return the last value of the metric of a run that has ended; None if it has none.

        Raises:
            JobFailed: several configs have trained the run.
        """
        job = self.job(words)
        if job is None or not is_finished(job.config, job.folder):
            return None
        run = RunFolder(job.folder)
        if run.status != RunStatus.FINISHED:  # a hook stopped it as hopeless
            return None
        if run.recorded.get("stretches"):
            message = (
                f"several configs trained {job.folder.name}, as its summary.json says, so it has no result"
            )
            raise JobFailed(message)
        values = [row[self.metric] for row in read_metrics(job.folder) if self.metric in row]
        return float(values[-1]) if values and values[-1] is not None and math.isfinite(values[-1]) else None

    def num_affordable(self, share: float = 1.0, pending: Sequence[Sequence[str]] = ()) -> float:
        """Return how many more runs fit into this share of the budget.

        Args:
            pending: overrides of the runs that would be the next. One that has begun already counts as one of the runs.
        """
        jobs = [self.job(words) for words in pending]
        used = self.used()
        num_ended = int(used[RUNS])
        used[RUNS] -= sum(job is not None and self._is_begun(job) for job in jobs)
        return self.budget.num_affordable(used, num_ended, share)

    def used(self) -> dict[str, float]:
        """Return what the study has used so far."""
        jobs = [job for job in self._jobs.values() if job is not None]
        runs = [summary for job in jobs if (summary := RunFolder(job.folder).summary)]
        wall, cpu = self.seconds()
        num_updates = sum(run.get("num_updates", 0) for run in runs)
        return {
            RUNS: len(runs),
            UPDATES: num_updates,
            WALL: self.before.get(WALL, 0.0) + wall,
            CPU: self.before.get(CPU, 0.0) + cpu,
        }

    def state(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the folder of a run and its state, for study.json."""
        job = self.job(words)
        folder = None if job is None else job.folder
        return {
            "run": None if folder is None else folder.name,
            "state": "refused" if folder is None else RunFolder(folder).state,
        }

    def _num_next(self, waiting: Sequence[ComposedJob]) -> int:
        affordable = self.num_affordable(pending=[job.words for job in waiting])
        num = len(waiting)
        if self.budget.needs_measuring:  # half of what fits: others may cost more than those that have ended
            is_measured = any(job is not None and self._is_begun(job) for job in self._jobs.values())
            num = max(self.at_once, int(min(affordable, num)) // 2 if is_measured else 0)
        return int(min(num, affordable, len(waiting)))

    @staticmethod
    def _is_begun(job: ComposedJob) -> bool:
        return RunFolder(job.folder).has_begun

    def has_ended(self, words: Sequence[str]) -> bool:
        """Whether a job is not trained again: it is finished, has ended in this start, or fails each time alike."""
        job = self.job(words)
        if job is None or job.folder in self._ended or is_finished(job.config, job.folder):
            return True
        run = RunFolder(job.folder)
        error = run.summary.get("error") or {}
        return run.status == RunStatus.FAILED and error.get("type") == NonFiniteError.__name__
