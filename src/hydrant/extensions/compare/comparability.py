"""Warnings about what makes a comparison unfair or incomplete. They are shown after the verdict, before the tables."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydrant.clock import Duration
from hydrant.config.metric_keys import differing_definitions
from hydrant.errors import ConfigError
from hydrant.extensions.compare.config_keys import is_data_key, label
from hydrant.extensions.compare.groups import Group, Metric, are_balanced
from hydrant.extensions.compare.run import SEVERAL, Run
from hydrant.extensions.compare.time_to_target import UNITS
from hydrant.runs.folder import RunStatus

_MAX_NAMES = 3
"""At most this many runs or groups are named; more are counted."""
_MAX_VALUES = 5
"""At most this many different values are listed; more are counted."""


@dataclass(frozen=True)
class ComparisonWarning:
    """A warning about runs or groups."""

    about: str
    text: str


def find_warnings(
    runs: Sequence[Run],
    groups: Sequence[Group],
    metric: Metric,
    of_effects: Sequence[str],
    times: Mapping[str, Mapping[str, float]],
) -> list[ComparisonWarning]:
    """Return the warnings about runs and groups.

    Args:
        of_effects: what the effects of a factorial leave out.
        times: to the target, by run and unit.
    """
    warnings = [*_excluded(runs), *_conditions(runs, metric), *_unbalanced(groups, of_effects)]
    if twice := [run for run in runs if run.is_read_twice]:
        text = "given as a folder and from W&B; only the folder is used"
        warnings.append(("runs", f"{_names(twice, runs)}: {text}"))
    missing = [f"{', '.join(g.missing_repetitions)} in {g.name}" for g in groups if g.missing_repetitions]
    if missing:
        warnings.append(("results", f"no run with {_listed(missing, _MAX_NAMES)}"))
    warnings += [*_ended_by_hooks(runs, metric), *_without_result(runs, metric), *_unknown_times(runs, times)]
    return [ComparisonWarning(about, text) for about, text in warnings]


_Texts = Iterator[tuple[str, str]]
"""What a warning is about, and its text."""


def _conditions(runs: Sequence[Run], metric: Metric) -> _Texts:
    """Yield the conditions in which the runs differ, and whether their code is that of a commit."""
    begun = [run for run in runs if run.summary.get("environment")]
    defining = differing_definitions(metric.name, [run.config for run in begun if metric.has_result(run)])
    conditions: dict[str, Callable[[Run], str]] = {
        "code commit": lambda run: (run.summary["environment"].get("git_commit") or "no commit")[:10],
        "torch version": lambda run: str(run.summary["environment"].get("torch")),
        "device": lambda run: str(run.summary["environment"].get("gpu") or "CPU"),
        "number of ranks": lambda run: str(run.summary["environment"].get("world_size", 1)),
        f"definition of {metric.name}": lambda run: " ".join(f"{key}={label(run, key)}" for key in defining),
        "data": _data(begun),
        "budget": _budget,
    }
    for about, value in conditions.items():
        yield from _differing(about, begun, value)
    chose = [run for run in begun if run.summary.get("orthogonalized_in")]
    yield from _differing("number format of Muon's products", chose, lambda r: r.summary["orthogonalized_in"])
    if dirty := [run for run in begun if run.summary["environment"].get("git_dirty")]:
        yield "code commit", f"uncommitted changes in {_names(dirty, runs)}: the code differs from the commit"


def _unbalanced(groups: Sequence[Group], of_effects: Sequence[str]) -> _Texts:
    """Yield whether results are means over different settings of other keys, or settings are left out."""
    keys = ", ".join(next((group.averaged_over for group in groups), ()))
    if not are_balanced(groups):
        text = f"the groups share no setting of {keys}, so the result of each is its mean over settings of its own"
        remedy = f"--best-over {keys.replace(' ', '')} compares the best of each"
        yield "groups", f"{text}: a difference may be due to these; {remedy}"
    if left_out := list(dict.fromkeys([cell for group in groups for cell in group.left_out] + [*of_effects])):
        named = _listed(left_out, _MAX_NAMES)
        yield "groups", f"not in the means, which take what all groups and seeds have: {named}"


def _excluded(runs: Sequence[Run]) -> _Texts:
    """Yield which runs are in no group."""
    if pairs := [f"{run.name} repeats {run.repeats}" for run in runs if run.repeats]:
        text = f"several runs of the same job with the same seed: {_listed(pairs, _MAX_NAMES)}"
        yield "repeats", f"{text}; only the newest finished run of a job counts"
    if described := [f"{run.name}: {run.error}" for run in runs if run.state == SEVERAL]:
        yield "groups", f"runs that several configs trained are in no group: {_listed(described, _MAX_NAMES)}"


def _ended_by_hooks(runs: Sequence[Run], metric: Metric) -> _Texts:
    """Yield whether results are those where a hook, such as `stop_at`, has ended the run."""
    if ended := [run for run in runs if metric.has_result(run) and run.summary.get("end_reason")]:
        updates = sorted({run.summary.get("num_updates", 0) for run in ended})
        after = " to ".join(f"{num:,}" for num in dict.fromkeys((updates[0], updates[-1])))
        reasons = _listed(sorted({str(run.summary["end_reason"]) for run in ended}), _MAX_VALUES)
        text = f"a hook has ended {_names(ended, runs)} after {after} updates ({reasons})"
        remedy = "the results are those of this moment; --target compares when runs reach a value"
        yield "budget", f"{text}: {remedy}"


def _without_result(runs: Sequence[Run], metric: Metric) -> _Texts:
    by_reason: dict[str, list[Run]] = {}
    for run in runs:
        if not metric.has_result(run) and not run.repeats and run.state != SEVERAL:
            by_reason.setdefault(_reason(run, metric), []).append(run)
    for reason, affected in by_reason.items():
        yield "results", f"{reason}: {_names(affected, runs)}; not included in any mean"


def _reason(run: Run, metric: Metric) -> str:
    """Return why a run has no result."""
    if run.state != RunStatus.FINISHED:
        return run.state
    if metric.name in run.series:
        return f"finished, but its last {metric.name} is not finite"
    return f"finished without {metric.name}"


def _unknown_times(runs: Sequence[Run], times: Mapping[str, Mapping[str, float]]) -> _Texts:
    """Yield the units without an AlgoPerf score, because a run reached the target at an unknown time."""
    timed = [run for run in runs if run.name in times]
    for unit in UNITS:
        if unknown := [run for run in timed if math.isnan(times[run.name][unit])]:
            text = f"no AlgoPerf score in {unit}, because it is unknown when these runs reached the target"
            yield "target", f"{text}: {_names(unknown, timed)}"


def _differing(about: str, runs: Sequence[Run], value: Callable[[Run], str]) -> _Texts:
    """Yield whether the runs differ in a value: the values, the most frequent first, with their runs."""
    by_value: dict[str, list[Run]] = {}
    for run in runs:
        by_value.setdefault(value(run), []).append(run)
    if len(by_value) > 1:
        (most_frequent, most), *rarer = sorted(by_value.items(), key=lambda item: -len(item[1]))
        values = [f"{most_frequent} ({len(most)} of {len(runs)} runs)"]
        values += [f"{text} ({_names(affected, runs)})" for text, affected in rarer]
        yield about, f"the {about} differs: {_listed(values, _MAX_VALUES)}"


def _listed(texts: Sequence[str], limit: int) -> str:
    """Return at most `limit` texts, and the number of the others."""
    more = [f"and {len(texts) - limit} more"] if len(texts) > limit else []
    return "; ".join([*texts[:limit], *more])


def _names(affected: Sequence[Run], runs: Sequence[Run]) -> str:
    """Return the names of the affected runs if they are few and not all runs, else their number."""
    if len(affected) <= _MAX_NAMES and len(affected) < max(len(runs), 2):
        return ", ".join(run.name for run in affected)
    return f"{len(affected)} of {len(runs)} runs"


def _data(runs: Sequence[Run]) -> Callable[[Run], str]:
    """Return a function that describes the data of a run: the keys in which the runs differ, and the files of the same
    name whose contents do."""
    keys = sorted({key for run in runs for key in run.config if is_data_key(key)})
    keys = [key for key in keys if len({label(run, key) for run in runs}) > 1]
    keys = ["data"] if "data" in keys else keys  # this option determines the other keys
    digests = [run.summary.get("data_files") or {} for run in runs]
    splits = sorted({split for of_run in digests for split in of_run if f"data.{split}" not in keys})
    splits = [split for split in splits if len({of_run.get(split) for of_run in digests} - {None}) > 1]
    splits = [] if keys == ["data"] else splits

    def describe(run: Run) -> str:
        files = run.summary.get("data_files") or {}
        contents = [f"content of data.{split} {files.get(split, '?')[:8]}" for split in splits]
        return " ".join([*(f"{key}={label(run, key)}" for key in keys), *contents])

    return describe


def _budget(run: Run) -> str:
    with contextlib.suppress(ConfigError):
        # The machines decide the updates.
        if Duration.parse(run.config.get("duration"), "duration").unit == "s":
            return f"{run.config['duration']} of training"
    total, sizes = run.summary.get("total_updates"), run.batch_sizes
    return "unknown" if total is None or sizes is None else f"{sizes.total(total):,} samples"
