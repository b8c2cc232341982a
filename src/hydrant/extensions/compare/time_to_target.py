"""The time until runs reach a target, in updates, samples and seconds; performance profiles and the AlgoPerf score."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydrant.extensions.compare.config_keys import repetition, setting_of
from hydrant.extensions.compare.run import REPEAT, Run
from hydrant.training.early_stopping import Target

UNITS: tuple[str, ...] = ("updates", "samples", "seconds")

_WORKLOAD = ("data", "model", "task", "experiment")
"""The config groups that define what is trained, not how."""

MAX_TAU = 4.0
NUM_POINTS = 100
"""A performance profile has this many points from 1 to MAX_TAU, as in AlgoPerf's scorer."""


def time_to_target(run: Run, target: Target) -> dict[str, float]:
    """Return when a run first reached a target, by unit: infinite if it did not, NaN if the time is unknown."""
    series = run.series.get(target.metric)
    if series is None:
        return dict.fromkeys(UNITS, math.inf)
    is_reached = series.values >= target.value if target.mode == "max" else series.values <= target.value
    if not is_reached.any():
        return dict.fromkeys(UNITS, math.inf)
    updates = series.updates[int(np.argmax(is_reached))]
    return {
        "updates": float(updates),
        "samples": math.nan if run.batch_sizes is None else float(run.batch_sizes.total(int(updates))),
        "seconds": float(run.seconds(np.array([updates]))[0]),
    }


def workload_time(studies: Mapping[str, Sequence[float]]) -> float:
    """Return the time of a submission on a workload: the median over its studies of the fastest trial.

    >>> workload_time({"0": [3.0, 5.0], "1": [math.inf, 4.0], "2": [math.inf]})
    4.0
    """
    return float(np.median([min(times) for times in studies.values()]))


@dataclass(frozen=True)
class GroupTime:
    """The number of runs of a group that reached the target, and the median time over seeds (and folds), by unit."""

    num_reached: int
    times: Mapping[str, float]  # infinite if half of them did not reach it, NaN if a time is unknown


def group_time(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> GroupTime:
    """Return when a group of runs reached the target. For each seed (and fold), the fastest run counts."""
    counted = [run for run in runs if run.state != REPEAT]
    medians: dict[str, float] = {}
    for unit in UNITS:
        studies: dict[str, list[float]] = {}
        for run in counted:
            studies.setdefault(repetition(run), []).append(times[run.name][unit])
        is_known = not any(math.isnan(times[run.name][unit]) for run in counted)
        medians[unit] = workload_time(studies) if is_known else math.nan
    return GroupTime(sum(math.isfinite(times[run.name]["updates"]) for run in counted), medians)


@dataclass(frozen=True)
class Profile:
    """For each submission, the ratio of workloads on which it is within `tau` of the fastest, and its score."""

    taus: Sequence[float]
    ratios: Mapping[str, Sequence[float]]
    scores: Mapping[str, float]


def profile(times: Mapping[str, Mapping[str, float]]) -> Profile:
    """Return the performance profiles of submissions, from their times on workloads (infinite: not reached).

    The score is the integral of a profile from 1 to 4, divided by 3, by the trapezoidal rule on 100 points as in
    AlgoPerf's scorer. A workload that no submission reached counts against all of them.
    """
    taus = np.linspace(1.0, MAX_TAU, NUM_POINTS)
    workloads = sorted({workload for by_workload in times.values() for workload in by_workload})
    fastest = {w: min(by_workload.get(w, math.inf) for by_workload in times.values()) for w in workloads}
    ratios: dict[str, list[float]] = {}
    for submission, by_workload in times.items():
        slowdowns = [_slowdown(by_workload.get(w, math.inf), fastest[w]) for w in workloads]
        ratios[submission] = np.mean(np.array(slowdowns)[:, None] <= taus, axis=0).tolist()
    scores = {name: float(np.trapezoid(curve, taus)) / (MAX_TAU - 1) for name, curve in ratios.items()}
    return Profile(taus.tolist(), ratios, scores)


def _slowdown(time: float, fastest: float) -> float:
    """Return `time / fastest`. The fastest time is 0 if the untrained model reaches the target."""
    if not math.isfinite(time):
        return math.inf
    return 1.0 if time == fastest else time / fastest if fastest else math.inf


def profiles(
    runs: Sequence[Run], by: Sequence[str], times: Mapping[str, Mapping[str, float]]
) -> dict[str, Profile]:
    """Return the performance profiles by unit.

    The grouping keys that belong to data, model, task or experiment form the workloads, the others the submissions.
    The seeds and folds are the studies, and all other differences the trials. A unit has no profile if the time of a
    run that reached the target is unknown.
    """
    if not times:
        return {}
    workload_keys = [key for key in by if key in _WORKLOAD]
    submission_keys = [key for key in by if key not in _WORKLOAD]
    if not submission_keys:
        workload_keys, submission_keys = [], list(by)
    by_unit: dict[str, Profile] = {}
    for unit in UNITS:
        if any(math.isnan(of_run[unit]) for of_run in times.values()):
            continue
        # by submission, workload and study: the times of the trials
        submissions: dict[str, dict[str, dict[str, list[float]]]] = {}
        for run in (run for run in runs if run.state != REPEAT):
            workloads = submissions.setdefault(setting_of(run, submission_keys), {})
            studies = workloads.setdefault(setting_of(run, workload_keys), {})
            studies.setdefault(repetition(run), []).append(times[run.name][unit])
        by_unit[unit] = profile(
            {
                submission: {workload: workload_time(studies) for workload, studies in workloads.items()}
                for submission, workloads in submissions.items()
            }
        )
    return by_unit
