"""What makes a comparison unfair or incomplete: told before any result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydrant.compare.groups import Goal, Group
from hydrant.compare.keys import label
from hydrant.compare.sources import Run
from hydrant.compare.targets import UNITS, unknown_times
from hydrant.config.plain import is_free

_NAMED = 3
"""So many runs are named; more are counted."""


@dataclass(frozen=True)
class Warned:
    """One thing to know before reading the results."""

    about: str
    text: str


def warnings(runs: Sequence[Run], groups: Sequence[Group], rest: Sequence[str], goal: Goal) -> list[Warned]:
    """What differs that should not, what is there twice, what is mixed, and what has no result."""
    begun = [run for run in runs if run.summary.get("environment")]
    facts: dict[str, Callable[[Run], str]] = {
        "code commit": lambda run: _commit(run.summary["environment"]),
        "torch version": lambda run: str(run.summary["environment"].get("torch")),
        "device": lambda run: str(run.summary["environment"].get("gpu") or "CPU"),
        "number of ranks": lambda run: str(run.summary["environment"].get("world_size", 1)),
        "data": _data(begun),
        "budget": _budget,
    }
    found = _repeats(runs)
    found += [warned for about, fact in facts.items() for warned in _differs(about, begun, fact)]
    dirty = [run for run in begun if run.summary["environment"].get("git_dirty")]
    if dirty:
        found.append(
            Warned("code commit", f"uncommitted changes in {_named(dirty, runs)}: the commit is not what ran")
        )
    mixed = [
        key for key in rest if key != "seed" and any(len({label(r, key) for r in g.runs}) > 1 for g in groups)
    ]
    if mixed:
        told = f"a group holds runs of different {', '.join(mixed)}; the spread is not of the seeds alone"
        found.append(Warned("groups", f"{told}; add them to --by to tell them apart"))
    twice = [run for run in runs if run.is_read_twice]
    if twice:
        told = f"{_named(twice, runs)}: given as folders and in W&B; each counts once, as its folder says"
        found.append(Warned("runs", told))
    lacking = [f"seed {', '.join(group.absent)} of {group.name}" for group in groups if group.absent]
    if lacking:
        found.append(Warned("results", f"no run was made of {'; '.join(lacking)}"))
    return found + _without_result(runs, goal)


def _repeats(runs: Sequence[Run]) -> list[Warned]:
    pairs = [f"{run.name} repeats {run.repeats}" for run in runs if run.repeats]
    if not pairs:
        return []
    more = f"; and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else ""
    told = f"the same job, seed included, is there more than once: {'; '.join(pairs[:_NAMED])}{more}"
    return [Warned("repeats", f"{told}; only the newest finished run of a job counts")]


def _without_result(runs: Sequence[Run], goal: Goal) -> list[Warned]:
    lacking: dict[str, list[Run]] = {}
    for run in runs:
        if not goal.counts(run) and not run.repeats:
            lacking.setdefault(_lacks(run, goal), []).append(run)
    return [
        Warned("results", f"{why}: {_named(own, runs)}; counted in no mean") for why, own in lacking.items()
    ]


def without_time(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> list[Warned]:
    """The units in which some run that reached the target does not say when."""
    unknown = {unit: set(unknown_times(times, unit)) for unit in UNITS}
    own = {unit: [run for run in runs if run.name in names] for unit, names in unknown.items() if names}
    return [
        Warned("target", f"no score in {unit}: unknown of {_named(lacking, runs)}, which reached the target")
        for unit, lacking in own.items()
    ]


def _lacks(run: Run, goal: Goal) -> str:
    """Why a run has no result."""
    if run.state != "finished":
        return run.state
    has_any = goal.metric in run.series
    return f"finished {f'whose last {goal.metric} is not finite' if has_any else f'without {goal.metric}'}"


def _differs(about: str, runs: Sequence[Run], fact: Callable[[Run], str]) -> list[Warned]:
    """A warning if a fact is not the same for all runs: every value, the most frequent first, and whose it is."""
    values: dict[str, list[Run]] = {}
    for run in runs:
        values.setdefault(fact(run), []).append(run)
    if len(values) < 2:
        return []
    ranked = sorted(values.items(), key=lambda item: -len(item[1]))
    named = [f"{len(ranked[0][1])} of {len(runs)} runs", *(_named(own, runs) for _, own in ranked[1:5])]
    told = "; ".join(f"{value} ({whose})" for (value, _), whose in zip(ranked, named, strict=False))
    more = f"; and {len(ranked) - 5} more" if len(ranked) > 5 else ""
    return [Warned(about, f"the {about} differs: {told}{more}")]


def _named(own: Sequence[Run], runs: Sequence[Run]) -> str:
    """Runs by name if they are few and not all, else their number."""
    if len(own) <= _NAMED and len(own) < max(len(runs), 2):
        return ", ".join(run.name for run in own)
    return f"{len(own)} of {len(runs)} runs"


def _commit(environment: Mapping[str, Any]) -> str:
    commit = environment.get("git_commit")
    return "no commit" if commit is None else str(commit)[:10]


def _data(runs: Sequence[Run]) -> Callable[[Run], str]:
    """What tells the data of a run: those keys of the data set in which the runs differ."""
    known = {key: {label(run, key) for run in runs} for run in runs for key in run.config if _is_data(key)}
    keys = [key for key, values in known.items() if len(values) > 1]
    told = ["data"] if "data" in keys else sorted(keys)  # its option decides the other keys
    return lambda run: " ".join(f"{key}={label(run, key)}" for key in told)


def _is_data(key: str) -> bool:
    return key in ("data", "limit_train_samples", "limit_val_samples") or (
        key.startswith("data.") and not is_free(key)
    )


def _budget(run: Run) -> str:
    total, batch = run.summary.get("total_updates"), run.samples_per_update
    return "unknown" if total is None or batch is None else f"{total * batch:,} samples"
