"""How soon runs reach a target: updates, samples and seconds; performance profiles and the AlgoPerf score."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hydrant.compare.series import FloatArray
from hydrant.compare.sources import REPEAT, Run
from hydrant.errors import ConfigError

UNITS: tuple[str, ...] = ("updates", "samples", "seconds")

MAX_TAU = 4.0
NUM_POINTS = 100
"""The profile's ratios to the fastest, from 1 to MAX_TAU, as AlgoPerf's own scorer takes them."""


@dataclass(frozen=True)
class Target:
    """A value of a metric that is to be reached."""

    metric: str
    value: float
    mode: str  # "max": at least the value; "min": at most

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.mode == 'max' else '<='}{self.value:g}"


def parse_target(text: str) -> Target:
    """Read `val/accuracy>=0.95`.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"(.+?)(>=|<=)(.+)", text)
    try:
        if match is None:
            raise ValueError
        value = float(match[3])
    except ValueError:
        told = f"{text!r} is no target; write it in quotes: --target 'val/accuracy>=0.95' or 'val/loss<=0.1'"
        raise ConfigError("--target", told) from None
    return Target(match[1].strip(), value, "max" if match[2] == ">=" else "min")


def time_to_target(run: Run, target: Target) -> dict[str, float]:
    """When a run first reached a target, in each unit: infinite where it did not, NaN where it does not say."""
    series = run.series.get(target.metric)
    nowhere = dict.fromkeys(UNITS, math.inf)
    if series is None:
        return nowhere
    reached = series.values >= target.value if target.mode == "max" else series.values <= target.value
    if not reached.any():
        return nowhere
    updates = series.updates[int(np.argmax(reached))]
    seconds = float(run.seconds(np.array([updates]))[0])
    return {
        "updates": float(updates),
        "samples": float(updates) * (run.samples_per_update or math.nan),
        "seconds": seconds,
    }


def unknown_times(times: Mapping[str, Mapping[str, float]], unit: str) -> list[str]:
    """The runs that reached the target and do not say when, in a unit."""
    return [name for name, own in times.items() if math.isnan(own[unit])]


def workload_time(studies: Mapping[str, Sequence[float]]) -> float:
    """The time of a submission on a workload: the median over its studies of each one's fastest trial.

    >>> workload_time({"0": [3.0, 5.0], "1": [math.inf, 4.0], "2": [math.inf]})
    4.0
    """
    return float(np.median([min(times) for times in studies.values()]))


@dataclass(frozen=True)
class Reached:
    """How many runs of a group reached the target, and when, in each unit: the median over the seeds."""

    num: int
    times: Mapping[str, float]  # infinite where half of the seeds did not, NaN where a run does not say


def reached(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> Reached:
    """When a group of runs reached the target; of the runs of a seed, the fastest counts."""
    own = [(str(run.config.get("seed")), times[run.name]) for run in runs if run.state != REPEAT]
    medians: dict[str, float] = {}
    for unit in UNITS:
        studies: dict[str, list[float]] = {}
        for seed, found in own:
            studies.setdefault(seed, []).append(found[unit])
        is_known = not any(math.isnan(found[unit]) for _, found in own)
        medians[unit] = workload_time(studies) if is_known else math.nan
    return Reached(sum(math.isfinite(found["updates"]) for _, found in own), medians)


@dataclass(frozen=True)
class Profile:
    """For each submission the ratio of workloads on which it is within `tau` of the fastest, and its score."""

    taus: FloatArray
    ratios: Mapping[str, FloatArray]
    scores: Mapping[str, float]


def profile(times: Mapping[str, Mapping[str, float]]) -> Profile:
    """Performance profiles of submissions from their times on workloads (infinite: not reached).

    The score is the integral of a profile over 1..4 divided by 3, by the trapezoidal rule on 100 points, which is how
    AlgoPerf's scorer takes it. A workload that no submission reached counts for all of them.
    """
    taus = np.linspace(1.0, MAX_TAU, NUM_POINTS)
    workloads = sorted({workload for own in times.values() for workload in own})
    fastest = {w: min(own.get(w, math.inf) for own in times.values()) for w in workloads}
    ratios: dict[str, FloatArray] = {}
    for submission, own in times.items():
        slower = [_ratio(own.get(w, math.inf), fastest[w]) for w in workloads]
        ratios[submission] = np.mean(np.array(slower)[:, None] <= taus, axis=0)
    scores = {name: float(np.trapezoid(curve, taus)) / (MAX_TAU - 1) for name, curve in ratios.items()}
    return Profile(taus, ratios, scores)


def _ratio(time: float, fastest: float) -> float:
    """How many times as long; a target that the untrained model reaches takes no time at all."""
    if not math.isfinite(time):
        return math.inf
    return 1.0 if time == fastest else time / fastest if fastest else math.inf
