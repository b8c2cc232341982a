"""A comparison: everything that the terminal, the files and the page tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hydrant.compare.comparability import Warned, warnings, without_time
from hydrant.compare.groups import (
    Goal,
    Group,
    beside,
    difference,
    find_baseline,
    group_runs,
    missing_cells,
    winner,
)
from hydrant.compare.importance import Importance, importance
from hydrant.compare.keys import differing_keys, label
from hydrant.compare.repeats import with_repeats
from hydrant.compare.sources import REPEAT, Run
from hydrant.compare.statistics import Difference
from hydrant.compare.targets import (
    UNITS,
    Profile,
    Reached,
    Target,
    profile,
    reached,
    time_to_target,
    unknown_times,
    workload_time,
)
from hydrant.errors import ConfigError, unknown_name

_WORKLOAD = ("data", "model", "task", "experiment")
"""The config groups that say what is trained, not how."""

_LESS_IS_BETTER = {"loss", "error", "perplexity", "nll", "mse", "mae", "fid", "distance", "seconds", "memory"}
"""Words in the names of such metrics."""


@dataclass(frozen=True)
class Comparison:
    """Runs, and what comes of them."""

    goal: Goal
    runs: Sequence[Run]
    keys: Sequence[str]  # in which the runs differ
    by: Sequence[str]
    groups: Sequence[Group]
    winner: Group | None
    runner_up: Group | None
    lead: Difference | None  # of the winner over it
    baseline: Group | None
    is_baseline_given: bool  # else it is the winner
    warnings: Sequence[Warned]
    num_cells: int  # of the grid that the groups' labels make
    missing: Sequence[Mapping[str, str]]  # cells of it without a run
    importance: Importance | None
    target: Target | None
    times: Mapping[str, Mapping[str, float]]  # to the target: run -> unit -> time
    reached: Mapping[str, Reached]  # by group
    profiles: Mapping[str, Profile]  # unit -> profile
    price_per_hour: float | None  # of what one run trains on


def compare(
    runs: Sequence[Run], *, by: Sequence[str] | None, metric: str | None, mode: str | None, baseline: str | None,
    target: Target | None, price_per_hour: float | None = None,
) -> Comparison:  # fmt: skip
    """Compare runs by the metric's last value, grouped by keys: by all that differ but the seed, if not given.

    Raises:
        ConfigError: names a key, metric, baseline or target that there is not.
    """
    goal, keys = _goal(runs, metric, mode), differing_keys(runs)
    runs = with_repeats(runs, keys)
    by = [key for key in keys if key != "seed"] if by is None else _known_keys(runs, by, keys)
    times = _times(runs, target)
    groups = group_runs(runs, by, keys, goal)
    best = winner(groups, goal)
    second = winner([group for group in groups if group is not best], goal)
    base = best if baseline is None else find_baseline(groups, baseline)
    groups = groups if base is None else beside(groups, base)
    by_name = {group.name: group for group in groups}  # the same ones, now with their differences
    num_cells, missing = missing_cells(groups)
    left_out = [key for key in keys if key not in by]
    return Comparison(
        goal=goal,
        runs=runs,
        keys=keys,
        by=by,
        groups=groups,
        winner=None if best is None else by_name[best.name],
        runner_up=None if second is None else by_name[second.name],
        lead=None if best is None or second is None else difference(best, second),
        baseline=None if base is None else by_name[base.name],
        is_baseline_given=baseline is not None,
        warnings=warnings(runs, groups, left_out, goal) + without_time(runs, times),
        num_cells=num_cells,
        missing=missing,
        importance=_importance(runs, keys, goal),
        target=target,
        times=times,
        reached={group.name: reached(group.runs, times) for group in groups} if times else {},
        profiles=_profiles(runs, by, times),
        price_per_hour=price_per_hour,
    )


def _goal(runs: Sequence[Run], metric: str | None, mode: str | None) -> Goal:
    """The metric to compare, by default that which decided the best checkpoints, and its direction."""
    decided = Counter(
        (r.config["best.metric"], r.config["best.mode"]) for r in runs if "best.metric" in r.config
    )
    default_metric, default_mode = decided.most_common(1)[0][0] if decided else ("val/accuracy", "max")
    name = default_metric if metric is None else metric
    _known_metric(runs, "--metric", name)
    if mode is None and name == default_metric:
        mode = default_mode
    return Goal(name, mode or mode_of(name))


def mode_of(metric: str) -> str:
    """Whether more of a metric is better, as its name tells."""
    is_less_better = not _LESS_IS_BETTER.isdisjoint(re.split(r"[^a-z]+", metric.lower()))
    return "min" if is_less_better else "max"


def _known_metric(runs: Iterable[Run], flag: str, name: str) -> None:
    known = {key for run in runs for key in run.series}
    if not known:
        raise ConfigError("RUNS", "none of the runs has logged anything yet; their summaries say why")
    if name not in known:
        raise unknown_name(flag, "metric", name, known)


def _known_keys(runs: Sequence[Run], by: Sequence[str], keys: Sequence[str]) -> list[str]:
    known = {key for run in runs for key in run.config}
    for key in by:
        if key not in known:
            raise unknown_name("--by", "key", key, keys or known)
    return list(by)


def _times(runs: Sequence[Run], target: Target | None) -> dict[str, dict[str, float]]:
    """Of every run, the times to the target, in each unit."""
    if target is None:
        return {}
    _known_metric(runs, "--target", target.metric)
    return {run.name: time_to_target(run, target) for run in runs}


def _importance(runs: Sequence[Run], keys: Sequence[str], goal: Goal) -> Importance | None:
    counted = [run for run in runs if goal.counts(run)]
    columns = {key: [run.config.get(key) for run in counted] for key in keys}
    return importance(columns, [value for run in counted if (value := goal.final(run)) is not None])


def _profiles(
    runs: Sequence[Run], by: Sequence[str], times: Mapping[str, Mapping[str, float]]
) -> dict[str, Profile]:
    """In each unit: the grouped keys make submissions, the seeds their studies, all else the trials.

    What is trained on (the choices of data, model and task among the keys) makes the workloads. In a unit in which
    a run that reached the target has no time there is no profile: an unknown time is neither fast nor slow.
    """
    if not times:
        return {}
    workload_keys = [key for key in by if key in _WORKLOAD]
    submission_keys = [key for key in by if key not in _WORKLOAD]
    if not submission_keys:
        workload_keys, submission_keys = [], list(by)
    found: dict[str, Profile] = {}
    for unit in UNITS:
        if unknown_times(times, unit):
            continue
        studies: dict[str, dict[str, dict[str, list[float]]]] = {}
        for run in (run for run in runs if run.state != REPEAT):
            own = studies.setdefault(_joined(run, submission_keys), {}).setdefault(
                _joined(run, workload_keys), {}
            )
            own.setdefault(label(run, "seed"), []).append(times[run.name][unit])
        found[unit] = profile(
            {name: {w: workload_time(s) for w, s in own.items()} for name, own in studies.items()}
        )
    return found


def _joined(run: Run, keys: Sequence[str]) -> str:
    return " ".join(f"{key}={label(run, key)}" for key in keys) or "all"
