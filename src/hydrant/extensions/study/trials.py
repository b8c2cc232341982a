"""The runs of a study, trained while its budget lasts, and what the runs of one on disk answer.

The answer of a study that is read again is computed from its runs, so none is forged.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydrant.errors import ConfigError, JobFailed, NonFiniteError
from hydrant.extensions.study.records import Protocol, StudyFile
from hydrant.extensions.study.verdict import Rule, failure, find_verdict, judge, question, why_it_ended
from hydrant.files.read_file import read_json
from hydrant.records import SweepVerdict
from hydrant.runs.folder import RunFolder, RunStatus, choices_in, runs_of_sweep
from hydrant.runs.record import read_metrics
from hydrant.sweeps.executors.base import SweepJob
from hydrant.sweeps.preflight import is_finished
from hydrant.terminal.console import relative

RUNS, UPDATES, WALL, CPU = "runs", "updates", "wall_seconds", "cpu_seconds"

_UNITS: Mapping[str, tuple[str, float]] = {
    "run": (RUNS, 1), "runs": (RUNS, 1), "update": (UPDATES, 1), "updates": (UPDATES, 1),
    "s": (WALL, 1), "min": (WALL, 60), "h": (WALL, 3600),
    "cpu-s": (CPU, 1), "cpu-min": (CPU, 60), "cpu-h": (CPU, 3600),
}  # fmt: skip

_NAMES = {RUNS: "runs", UPDATES: "updates", WALL: "seconds", CPU: "processor seconds"}

Amounts = Mapping[str, float]
"""How much of each: `RUNS`, `UPDATES`, `WALL`, `CPU`."""


@dataclass(frozen=True)
class Budget:
    """The limits of a study. A resource without a limit is not in it."""

    limits: Amounts

    def describe(self) -> str:
        """Return the limits in words.

        >>> read_budget("40runs,10min").describe()
        '40 runs and 600 seconds'
        """
        return " and ".join(f"{limit:,g} {_NAMES[name]}" for name, limit in self.limits.items())

    def num_affordable(self, used: Amounts, cost: Amounts, share: float = 1.0) -> float:
        """Return how many runs may begin; infinity if nothing limits them.

        Args:
            used: by the study.
            cost: of a run, as expected; 0 where it is unknown.
            share: of the budget that may be used.
        """
        return min((self._num_runs(name, used, cost, share) for name in self.limits), default=math.inf)

    def lets_continue(self, used: Amounts) -> bool:
        """Whether runs that have begun may continue: they count as runs already, but cost updates and time."""
        return all(used[name] < limit for name, limit in self.limits.items() if name != RUNS)

    @property
    def needs_measuring(self) -> bool:
        """Whether only a run tells how many fit."""
        return any(name != RUNS for name in self.limits)

    def enlarged(self, used: Amounts, cost: Amounts, num: int) -> Budget:
        """Return a budget that lets so many more runs begin, with a tenth more of what only a run can tell.

        Where the cost of a run is unknown, it is three times what was used: starting alone has used up the limit.

        Args:
            num: the runs.
        """
        limits = dict(self.limits)
        for name in limits:
            each = cost[name] * (1.0 if name == RUNS else 1.1)
            more = num * each if each else 2 * used[name]
            amount = used[name] + more
            size = 60 if name in (WALL, CPU) and amount > 60 else 1
            limits[name] = max(limits[name], float(math.ceil(amount / size) * size))
        return Budget(limits)

    def words(self) -> str:
        """Return these limits as `read_budget` reads them.

        >>> read_budget("40runs,600s,90cpu-s").words()
        '40runs,10min,90cpu-s'
        """
        return ",".join(_written(name, limit) for name, limit in self.limits.items())

    def _num_runs(self, name: str, used: Amounts, cost: Amounts, share: float) -> float:
        left = self.limits[name] * share - used[name]
        if left <= 0:
            return 0
        return math.inf if cost[name] == 0.0 else left / cost[name]


def _written(name: str, limit: float) -> str:
    units = [(size, unit) for unit, (kind, size) in _UNITS.items() if kind == name]
    size, unit = max((fitting for fitting in units if limit % fitting[0] == 0), default=units[0])
    return f"{limit / size:.15g}{unit}"


def read_budget(text: str | None) -> Budget:
    """Return the budget that a text such as `40runs,10min` describes.

    Raises:
        ConfigError: it has an unknown unit, no amount above 0, a part of a run, or two limits of a kind.
    """
    limits = dict[str, float]()
    for part in [] if text is None else text.split(","):
        match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\+?\d+)?)\s*([a-z-]+)\s*", part)
        amount, unit = (float(match[1]), match[2]) if match else (0.0, "")
        name, factor = _UNITS.get(unit, ("", 1))
        is_part = name in (RUNS, UPDATES) and not amount.is_integer()
        if not name or name in limits or is_part or not 0 < amount < math.inf:
            needs = "whole numbers of runs and updates, and times, each once"
            remedy = "write 40runs, 5000updates, 10min or 10cpu-min, or several: 40runs,10min"
            raise ConfigError("hydra.sweeper.budget", needs=needs, got=text, remedy=remedy)
        limits[name] = amount * factor
    return Budget(limits)


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
        seconds: wall and processor seconds of this start so far. They count if it is the first or trains a job.
        before_first: called before the first job of a later start.
        before_round: called with the number of runs that a round trains.
        after_batch: called when jobs have ended.
    """

    folder: Path
    budget: Budget
    at_once: int
    compose: Callable[[Sequence[str]], SweepJob | None]
    train: Callable[[Sequence[SweepJob], int], object]
    before: Amounts
    seconds: Callable[[], tuple[float, float]]
    before_first: Callable[[], object]
    before_round: Callable[[int], object]
    after_batch: Callable[[], object]

    def __post_init__(self) -> None:
        self.is_counted = not self.before  # this start: the first one, or one that trains
        self._jobs = dict[tuple[str, ...], SweepJob | None]()
        self._ended = set[Path]()
        self._runs = dict[Path, RunFolder]()  # as read since they last trained
        # The same for their configs: each round asks for all jobs.
        self._finished = dict[Path, tuple[SweepJob, bool]]()

    def run(self, words: Sequence[Sequence[str]]) -> None:
        """Train the jobs of these overrides.

        Raises:
            BudgetSpent: the budget ended before.
            Stopped: a signal arrived.
        """
        jobs = [job for job in map(self.job, words) if job is not None and not self.has_ended(job.words)]
        waiting = sorted(jobs, key=lambda job: not self._is_begun(job))  # a begun one has its place already
        if waiting:
            self.before_round(len(waiting))
        while waiting:
            batch = waiting[: self._num_next(waiting)]
            if not batch:
                self.give_up([job.words for job in waiting])  # no other try is paid
                if all(job.folder in self._ended for job in waiting):
                    break
                raise BudgetSpent
            if not self.is_counted:
                self.is_counted = True
                self.before_first()
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
        used, ended = self.used(), [run for run in self._begun_runs() if run.status in ENDED]
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
        runs = self._begun_runs()
        wall, cpu = self.seconds() if self.is_counted else (0.0, 0.0)
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
            num = max(self.at_once, int(min(affordable / 2, num)) if is_measured else 0)
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


RESULT = "study.json"

ENDED = (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.PRUNED, RunStatus.STOPPED)


def read_study(folder: Path, remedy: str = "the same command writes it again") -> StudyFile | None:
    """Return the study.json of a folder; None if there is none.

    Raises:
        RecordError: it is damaged.
    """
    return read_json(folder / RESULT, StudyFile, remedy)


def read_answer(folder: Path) -> SweepVerdict | None:
    """Return what the runs in the folder of a study answer, by its protocol; None if it is no study.

    Raises:
        RecordError: study.json or the rows of a run are damaged.
    """
    if (study := read_study(folder)) is None:
        return None
    protocol, reason = study.protocol, study.verdict.ended_by
    tried, fresh = _outcomes(folder, protocol)
    without = dict[str, str]()
    for name, outcomes in tried.items():
        if protocol.tuning.get(name) and any(fresh.values()) and all(isinstance(o, str) for o in outcomes):
            without[name] = tuning_failure(outcomes)
    results = {
        name: [None if isinstance(o, str) else o for o in outcomes]
        for name, outcomes in fresh.items()
        if any(fresh.values()) and name not in without
    }
    rule = Rule(
        protocol.metric, protocol.mode, protocol.alpha, protocol.power, protocol.min_difference, len(fresh)
    )
    standing, limits = judge(results, rule), dict[str, float](protocol.budget.items())
    why_ended = why_it_ended(
        None if results and reason == "failures" else reason, protocol.max_seeds, Budget(limits).describe()
    )
    why_failed = {name: failure(fresh[name], num) for name, num in standing.failed.items()}
    verdict = find_verdict(standing, results, rule, without, why_ended, why_failed)
    asked, file = question([*protocol.contenders], rule), relative(folder / RESULT)
    first = protocol.first_fresh_seed
    return SweepVerdict(verdict.status, verdict.sentence, verdict.winner, file, rule.metric, first, asked)


def _outcomes(
    folder: Path, protocol: Protocol
) -> tuple[dict[str, list[float | str]], dict[str, list[float | str]]]:
    """Return the outcomes of each contender's runs that have ended: of the tuning, and of its first fresh seeds."""
    words = {name: choices_in(overrides) for name, overrides in protocol.contenders.items()}
    tried: dict[str, list[float | str]] = {name: [] for name in words}
    fresh: dict[str, dict[int, float | str]] = {name: {} for name in words}
    first, metric = protocol.first_fresh_seed, protocol.metric
    for run in runs_of_sweep(folder):
        seed = run.choices.get("seed", "")
        # The words of one contender may be among those of another one, whose run it then is.
        names = [name for name, choices in words.items() if choices.items() <= run.choices.items()]
        if not names or not seed.isdecimal() or run.status not in ENDED:
            continue
        name = max(names, key=lambda name: len(words[name]))
        if int(seed) >= first:
            fresh[name][int(seed)] = outcome_of(run, metric)
        else:
            tried[name].append(outcome_of(run, protocol.tuning_metric or metric))
    seeds = {
        name: itertools.takewhile(by_seed.__contains__, itertools.count(first))
        for name, by_seed in fresh.items()
    }
    return tried, {name: [fresh[name][seed] for seed in of_name] for name, of_name in seeds.items()}  # pyrefly: ignore[bad-index]  # by its keys


def outcome_of(run: RunFolder, metric: str) -> float | str:
    """Return the last value of a metric of a run that has ended; why it has none, if it has none or is not finite."""
    if run.status == RunStatus.STOPPED:
        return "stopped"
    if run.status != RunStatus.FINISHED:
        error = (run.summary.get("error") or {}).get("type")
        return "diverged" if error == NonFiniteError.__name__ else "failed"
    values = [row[metric] for row in read_metrics(run.path) if metric in row]
    if not values:
        plain = metric.replace("_ema/", "/", 1)  # without an average, it is that of the weights
        return f"finished without {metric}" if plain == metric else outcome_of(run, plain)
    return float(values[-1]) if values[-1] is not None and math.isfinite(values[-1]) else "diverged"


def tuning_failure(reasons: Sequence[float | str]) -> str:
    """Return why a contender is in no test, by why each of its runs of the tuning has no result."""
    counts = ", ".join(f"{num} {reason}" for reason, num in Counter(reasons).items())
    return f"of {len(reasons)} runs of the tuning, {counts}" if reasons else "no run of its tuning began"
