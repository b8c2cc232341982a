"""study.json as it is read again: what was asked and used. The answer is computed from the runs, so none is forged."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydrant.errors import NonFiniteError
from hydrant.extensions.study.ranges import Budget
from hydrant.extensions.study.records import Protocol, StudyFile
from hydrant.extensions.study.verdict import (
    Rule,
    failure,
    find_verdict,
    judge,
    question,
    why_it_ended,
)
from hydrant.files.read_file import read_json
from hydrant.runs.folder import RunFolder, RunStatus, choices_in, runs_of_sweep
from hydrant.runs.record import read_metrics
from hydrant.terminal.console import relative

RESULT = "study.json"

ENDED = (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.PRUNED, RunStatus.STOPPED)


@dataclass(frozen=True)
class Answer:
    """What the runs of a study answer, by its protocol in study.json."""

    status: str
    sentence: str
    winner: str | None
    file: str
    metric: str  # which it judged
    first_fresh_seed: int
    question: str


def read_study(folder: Path, remedy: str = "the same command writes it again") -> StudyFile | None:
    """Return the study.json of a folder; None if there is none.

    Raises:
        RecordError: it is damaged.
    """
    return read_json(folder / RESULT, StudyFile, remedy)


def read_answer(folder: Path) -> Answer | None:
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
        protocol.metric,
        protocol.mode,
        protocol.alpha,
        protocol.power,
        protocol.min_difference,
        len(fresh),
    )
    standing, limits = judge(results, rule), dict[str, float](protocol.budget.items())
    why_ended = why_it_ended(
        None if results and reason == "failures" else reason, protocol.max_seeds, Budget(limits).describe()
    )
    why_failed = {name: failure(fresh[name], num) for name, num in standing.failed.items()}
    verdict = find_verdict(standing, results, rule, without, why_ended, why_failed)
    asked, file = question([*protocol.contenders], rule), relative(folder / RESULT)
    first = protocol.first_fresh_seed
    return Answer(verdict.status, verdict.sentence, verdict.winner, file, rule.metric, first, asked)


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
    return tried, {name: [fresh[name][seed] for seed in of_name] for name, of_name in seeds.items()}


def outcome_of(run: RunFolder, metric: str) -> float | str:
    """Return the last value of a metric of a run that has ended; why it has none, if it has none or is not finite."""
    if run.status == RunStatus.STOPPED:
        return "stopped"
    if run.status != RunStatus.FINISHED:
        error = (run.summary.get("error") or {}).get("type")
        return "diverged" if error == NonFiniteError.__name__ else "failed"
    values = [row[metric] for row in read_metrics(run.path) if metric in row]
    if not values:
        return f"finished without {metric}"
    return float(values[-1]) if values[-1] is not None and math.isfinite(values[-1]) else "diverged"


def tuning_failure(reasons: Sequence[float | str]) -> str:
    """Return why a contender is in no test, by why each of its runs of the tuning has no result."""
    counts = ", ".join(f"{num} {reason}" for reason, num in Counter(reasons).items())
    return f"of {len(reasons)} runs of the tuning, {counts}" if reasons else "no run of its tuning began"
