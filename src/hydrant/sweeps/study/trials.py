"""The jobs of a study: which are trained while the budget lasts, what they cost, and their results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydrant.errors import JobFailed, NonFiniteError
from hydrant.runs.folder import RunFolder, RunStatus, runs_of_sweep
from hydrant.sweeps.executors.base import SweepJob
from hydrant.sweeps.preflight import is_finished
from hydrant.sweeps.study.answer import ENDED, outcome_of
from hydrant.sweeps.study.ranges import CPU, RUNS, UPDATES, WALL, Amounts, Budget


class BudgetSpent(Exception):
    """The next jobs do not fit into the budget."""


@dataclass
class Trials:
    """Trains jobs once, and knows what the study has used.

    Args:
        folder: of the study. All of its runs count as used.
        budget: of the study.
        at_once: jobs that train at the same time. So many start first if a run tells what others cost.
        compose: returns the job of some overrides; None if they make no config.
        train: trains jobs, the first of which has this number.
        before: what earlier starts of the study have used, in wall and processor seconds.
        seconds: wall and processor seconds of this start so far.
        after_batch: called when jobs have ended.
    """

    folder: Path
    budget: Budget
    at_once: int
    compose: Callable[[Sequence[str]], SweepJob | None]
    train: Callable[[Sequence[SweepJob], int], object]
    before: Amounts
    seconds: Callable[[], tuple[float, float]]
    after_batch: Callable[[], object]

    def __post_init__(self) -> None:
        self._jobs = dict[tuple[str, ...], SweepJob | None]()
        self._ended, self._runs = (
            set[Path](),
            dict[Path, RunFolder](),
        )  # the runs as read since they last trained
        # The same for their configs: each round asks for all jobs.
        self._finished = dict[Path, tuple[SweepJob, bool]]()

    def run(self, words: Sequence[Sequence[str]]) -> None:
        """Train the jobs of these overrides.

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
                self.give_up([job.words for job in waiting])  # no other try is paid
                if all(job.folder in self._ended for job in waiting):
                    break
                raise BudgetSpent
            try:
                self.train(batch, len(self._ended))
            finally:
                for job in batch:
                    self._runs.pop(job.folder, None)
                    self._finished.pop(job.folder, None)
            self._ended |= {job.folder for job in batch}
            waiting = waiting[len(batch) :]
            self.after_batch()

    def give_up(self, words: Sequence[Sequence[str]]) -> None:
        """Give those of these runs that have failed no other try."""
        jobs = [job for job in map(self.job, words) if job is not None]
        self._ended |= {job.folder for job in jobs if self._run_of(job).status == RunStatus.FAILED}

    def job(self, words: Sequence[str]) -> SweepJob | None:
        key = tuple(words)
        if key not in self._jobs:
            self._jobs[key] = self.compose(words)
        return self._jobs[key]

    def result(self, words: Sequence[str], metric: str) -> float | None:
        """Return the last value of a metric of a run that has ended; None if it has no finite one.

        Raises:
            JobFailed: several configs have trained the run.
        """
        job = self.job(words)
        if job is None or not self._is_finished(job):
            return None
        run = self._run_of(job)
        if run.status != RunStatus.FINISHED:  # a hook stopped it as hopeless
            return None
        if run.recorded.get("stretches"):
            reason = "as its summary.json says, so it has no result"
            raise JobFailed(f"several configs trained {job.folder.name}, {reason}")
        outcome = outcome_of(run, metric)
        return None if isinstance(outcome, str) else outcome

    def outcome(self, words: Sequence[str], metric: str) -> float | str:
        """Return the result of a run that has ended; if it has none, why: `diverged`, `stopped`, `refused` or so."""
        job = self.job(words)
        return "refused" if job is None else outcome_of(self._run_of(job), metric)

    def num_affordable(self, share: float = 1.0) -> float:
        """Return how many runs may begin within this share of the budget.

        A run is expected to cost as much as the mean of those that have ended.
        """
        return self.budget.num_affordable(*self._used_and_cost(), share)

    def budget_for(self, num: int) -> Budget:
        """Return the budget, enlarged if so many more runs do not fit into it."""
        return self.budget.enlarged(*self._used_and_cost(), num)

    def _used_and_cost(self) -> tuple[Amounts, Amounts]:
        """Return what the study has used, and what the next run is expected to cost; 0 where that is unknown."""
        runs = self._begun_runs()
        used = self._used_by(runs)
        ended = [run for run in runs if run.status in ENDED]
        num = len(ended)
        cost = {WALL: used[WALL] / num, CPU: used[CPU] / num} if num else {WALL: 0.0, CPU: 0.0}
        return used, cost | {RUNS: 1, UPDATES: _num_updates(ended) / max(num, 1)}

    def num_new(self, words: Sequence[Sequence[str]]) -> int:
        """Return how many of these runs have not begun. The others have their place in the budget."""
        jobs = [self.job(run_words) for run_words in words if not self.has_ended(run_words)]
        return sum(job is not None and not self._is_begun(job) for job in jobs)

    def has_other_seeds(self, seed: int) -> bool:
        """Whether a run of the study has begun with another seed."""
        return any(run.choices.get("seed", f"{seed}") != f"{seed}" for run in self._begun_runs())

    def used(self) -> dict[str, float]:
        """Return what the study has used so far."""
        return self._used_by(self._begun_runs())

    def _used_by(self, runs: Sequence[RunFolder]) -> dict[str, float]:
        wall, cpu = self.seconds()
        seconds = {WALL: self.before.get(WALL, 0.0) + wall, CPU: self.before.get(CPU, 0.0) + cpu}
        return {RUNS: len(runs), UPDATES: _num_updates(runs), **seconds}

    def _begun_runs(self) -> list[RunFolder]:
        runs = [self._runs.setdefault(run.path.resolve(), run) for run in runs_of_sweep(self.folder)]
        return [run for run in runs if run.has_begun]

    def _run_of(self, job: SweepJob) -> RunFolder:
        """Return what the folder of a job holds, which only a training of this study changes."""
        return self._runs.setdefault(job.folder, RunFolder(job.folder))

    def state(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the folder of a run and its state, for study.json."""
        job = self.job(words)
        if job is None:
            return {"run": None, "state": "refused"}
        return {"run": job.folder.name, "state": self._run_of(job).state}

    def of_first_run(self, key: Literal["environment", "num_samples"]) -> Mapping[str, Any]:
        """Return what the summary of the first run records; nothing if there is none."""
        return next(filter(None, (run.summary.get(key) for run in self._begun_runs())), {})

    def _num_next(self, waiting: Sequence[SweepJob]) -> int:
        affordable, num = self.num_affordable(), len(waiting)
        if self.budget.lets_continue(self.used()):
            affordable += sum(map(self._is_begun, waiting))
        if self.budget.needs_measuring:  # half of what fits: others may cost more than those that have ended
            is_measured = any(run.status in ENDED for run in self._begun_runs())
            num = max(self.at_once, int(min(affordable, num)) // 2 if is_measured else 0)
        return int(min(num, affordable, len(waiting)))

    def _is_begun(self, job: SweepJob) -> bool:
        return self._run_of(job).has_begun

    def _is_finished(self, job: SweepJob) -> bool:
        known, is_known = self._finished.get(job.folder, (None, False))
        if known is not job:
            is_known = is_finished(job.config, self._run_of(job))
            self._finished[job.folder] = job, is_known
        return is_known

    def has_ended(self, words: Sequence[str]) -> bool:
        """Whether a job is not trained again: it is finished, has ended in this start, or fails each time alike."""
        job = self.job(words)
        if job is None or job.folder in self._ended or self._is_finished(job):
            return True
        run = self._run_of(job)
        error = run.summary.get("error") or {}
        return run.status == RunStatus.FAILED and error.get("type") == NonFiniteError.__name__


def _num_updates(runs: Sequence[RunFolder]) -> int:
    return sum(run.summary.get("num_updates", 0) for run in runs)
