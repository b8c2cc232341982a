"""`Run`: the data of one run that `hydrant compare` uses, with its metrics as arrays; the keys in which runs differ.

Of several runs of the same job only one counts, because copies add no information.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hydrant.clock import Steps
from hydrant.config import flat
from hydrant.config.groups import REPETITIONS
from hydrant.config.metric_keys import LOSS_OF_BATCH
from hydrant.errors import shown
from hydrant.runs.folder import RunStatus

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Series:
    """The values of a metric after so many updates; NaN for values that were not finite."""

    updates: FloatArray
    values: FloatArray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Series) or not np.array_equal(self.updates, other.updates):
            return False
        return np.array_equal(self.values, other.values, equal_nan=True)


def _series_by_metric(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Return the series of each metric in the rows of metrics.jsonl."""
    columns: dict[str, tuple[list[float], list[float | None]]] = {}
    for row in rows:
        num_updates = row["num_updates"]
        for key, value in row.items():
            if "/" in key:
                updates, values = columns.setdefault(key, ([], []))
                updates.append(num_updates)
                values.append(value)
    return {key: Series(*(np.array(axis, dtype=float) for axis in axes)) for key, axes in columns.items()}


REPEAT = "repeat"
"""The state of a run that repeats the job of a counted run."""

SEVERAL = "several configs"
"""The state of a run that several configs trained, one after the other. It is in no group."""


@dataclass(frozen=True)
class Run:
    """A run, from any source."""

    name: str  # unique among the compared runs
    state: str  # a `RunStatus`, REPEAT or SEVERAL
    config: Mapping[str, Any]  # flat keys, and the option of each config group
    overrides: Mapping[str, str]  # by key, as written
    summary: Mapping[str, Any]
    series: Mapping[str, Series] = field(default_factory=dict[str, Series])  # by metric
    error: str = ""
    has_own_name: bool = False  # False for a job of a sweep, whose name consists of its overrides
    title: str = ""  # replaces the name where the titles of all runs differ; "": the name of the folder
    is_read_twice: bool = False  # from its folder and from W&B
    last_logged: float = 0.0  # the time of its last row, in unix seconds
    repeats: str = ""  # the name of the counted run with the same job
    folder: Path | None = None  # None: of a service such as W&B

    def __post_init__(self) -> None:
        if size := self.summary.get(LOSS_OF_BATCH):
            object.__setattr__(self, "config", {**self.config, LOSS_OF_BATCH: size})

    def with_rows(self, rows: Sequence[Mapping[str, Any]]) -> "Run":
        """Return the run with the rows of its metrics.jsonl."""
        last_logged = float(rows[-1].get("time") or 0.0) if rows else 0.0
        return replace(self, series=_series_by_metric(rows), last_logged=last_logged)

    @property
    def batch_sizes(self) -> Steps[int] | None:
        """The samples of each update; None if they are unknown, as where a size begins at an epoch."""
        prefix = "global_batch_size."
        sizes = {key.removeprefix(prefix): n for key, n in self.config.items() if key.startswith(prefix)}
        if not all(begin.isdigit() for begin in sizes):
            return None
        if starts := sorted(sizes, key=int):
            return Steps(tuple(map(int, starts)), tuple(sizes[n] for n in starts))
        size = self.config.get("global_batch_size")  # without a config, the text of an override
        return Steps.constant(size) if isinstance(size, int) else None

    @property
    def samples_per_update(self) -> int | None:
        """The samples of every update; None if they are unknown or change."""
        sizes = self.batch_sizes
        return sizes.values[0] if sizes is not None and sizes.is_constant else None

    @property
    def wandb_id(self) -> str | None:
        return (self.summary.get("wandb") or {}).get("id")

    def seconds(self, updates: FloatArray) -> FloatArray:
        """Return the seconds of training after so many updates; NaN if the run did not log its speed."""
        rate = self.series.get("perf/updates_per_second")
        if rate is None:
            return np.full(len(updates), np.nan)
        durations = np.diff(rate.updates, prepend=0.0) / rate.values
        points = np.concatenate(([0.0], rate.updates)), np.concatenate(([0.0], np.cumsum(durations)))
        return np.interp(updates, *points)


def with_averages(runs: Sequence[Run]) -> list[Run]:
    """Give the runs without averages the metrics of the others' averages: theirs are those of the weights."""
    names = {name for run in runs for name in run.series if name.startswith(("val_ema/", "test_ema/"))}
    plain = {name: name.replace("_ema/", "/", 1) for name in names}

    def given(run: Run) -> Run:
        own = {name: run.series[of] for name, of in plain.items() if of in run.series}
        return replace(run, series={**run.series, **own}) if own and names.isdisjoint(run.series) else run

    return [given(run) for run in runs]


_DATA = ("data", "limit_train_samples", "limit_val_samples", "limit_test_samples", "label_noise", "folds")
"""The keys outside of `data.` that say which samples a run uses."""

_NEEDED_BY = {"label_noise_seed": "label_noise", "fold_seed": "folds", "fold": "folds"}
"""Repetitions, and the key without which they have no effect: runs that differ only in them are copies."""

_EXACT = 2.0**53
"""Below this, every whole number is exact as a float."""


def repetition(run: Run) -> str:
    """Return which repetition of its experiment a run is: `seed 0`, `seed 0 fold 2` in a cross-validation.

    All runs have a fold, but it says nothing without folds. The first division into folds, `fold_seed` 0, and the
    first wrong labels are not named.
    """
    first = {key for key in ("fold_seed", "label_noise_seed") if run.config.get(key) in (None, 0)}
    return " ".join(f"{key} {label(run, key)}" for key in effective_repetitions(run) if key not in first)


def effective_repetitions(run: Run) -> list[str]:
    """Return the keys that make a run another repetition: `fold` only if it has folds, and a seed of the data only if
    the command sets it.
    """
    return [
        key
        for key in REPETITIONS
        if (key in run.overrides if "." in key else key not in _NEEDED_BY or run.config.get(_NEEDED_BY[key]))
    ]


def repetitions_of(keys: Sequence[str]) -> str:
    """Return what the runs of a group are that differ in keys: `seeds`, `folds`, or `seeds and folds`."""
    names = [key.rpartition(".")[2].replace("_", " ") for key in REPETITIONS if key in keys]
    return " and ".join(f"{name}s" for name in names or ["seed"])


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the keys that distinguish the runs: those of overrides, and others that differ.

    Of the others, a key is left out if another key determines it: `optimizer.betas` if all runs of an `optimizer=` have
    the same value. Keys that do not influence results, such as the tracker and the intervals, are left out too.
    """
    begun = [run for run in runs if run.config and run.summary]  # else the config is partial
    overrides = {key for run in runs for key in run.overrides}
    groups = set(config_groups(begun))
    candidates = overrides | {key for run in begun for key in run.config}
    keys: list[str] = []
    for key in sorted(candidates, key=lambda key: (key not in overrides, key not in groups, key)):
        is_idle = all(flat.is_idle_interval(key, run.config) for run in begun)
        if is_idle or flat.is_neutral(key) or flat.is_after_training(key):
            continue
        values = {_text(run, key) for run in (runs if key in overrides else begun) if run.config}
        if len(values) > 1 and (key in overrides or not any(_determines(begun, one, key) for one in keys)):
            keys.append(key)
    return sorted(keys, key=lambda key: (key in REPETITIONS, "." in key, key))


def differing_settings(groups: Sequence[Sequence[Run]], by: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys that all groups have, each with one value, but not all with the same: with these values.

    Such as the default of a weight decay, which another optimizer changes too.
    """
    begun = [[run for run in runs if run.summary] for runs in groups]
    begun = [runs for runs in begun if runs]
    first = [runs[0] for runs in begun]
    return {
        key: list(dict.fromkeys(label(run, key) for run in first))
        for key in flat.unasked_differences([run.config for run in first], by)
        if all(len({label(run, key) for run in runs}) == 1 for runs in begun)
    }


def is_data_key(key: str) -> bool:
    """Return whether a key says which samples an experiment trains on or is evaluated with, but no repetition of it.

    >>> [is_data_key(key) for key in ("data", "data.split_seed", "folds", "data.num_workers")]
    [True, False, True, False]
    """
    is_setting = key.startswith("data.") and not flat.is_neutral(key) and key not in REPETITIONS
    return is_setting or key in _DATA


def label(run: Run, key: str) -> str:
    """Return the value of a key as written in a config; "-" if the run lacks the key, or it changes nothing in it."""
    needed = _NEEDED_BY.get(key, "")
    is_idle = not run.config.get(needed, True)  # the config of a missing run is partial
    return "-" if is_idle or key not in run.config else as_text(run.config[key])


def setting_of(run: Run, keys: Sequence[str]) -> str:
    """Return the values of keys in words: `optimizer=adamw seed=0`; `all runs` without keys."""
    return " ".join(f"{key}={label(run, key)}" for key in keys) or "all runs"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else shown(_normalized(value))


def equals_label(text: str, label: str) -> bool:
    """Return whether a text of the command line is the same as a label, or the same number.

    >>> equals_label("1e-3", "0.001"), equals_label("adamw", "adamw"), equals_label("1", "10")
    (True, True, False)
    """
    with suppress(ValueError):
        return text == label or float(text) == float(label)
    return False


def _text(run: Run, key: str) -> str:
    return json.dumps(_normalized(run.config[key]), sort_keys=True, default=str) if key in run.config else ""


def _normalized(value: Any) -> Any:
    """Return a value in the same form for every source, because W&B turns 1.0 into 1.

    >>> _normalized([1.0, 0.5, 1e30, 10**30, True])
    [1, 0.5, 1e+30, 1e+30, True]
    """
    match value:
        case bool():
            return value
        case int() | float():
            is_whole = abs(value) < _EXACT and float(value).is_integer()
            return int(value) if is_whole else float(value)
        case list():
            return [_normalized(item) for item in cast("list[Any]", value)]
        case _:
            return value


def config_groups(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the config groups. Their options determine other keys."""
    for run in runs:
        tops = {key.partition(".")[0] for key in run.config if "." in key}
        yield from (key for key in run.config if key in tops or "@" in key or key in ("experiment", "debug"))


def _determines(runs: Sequence[Run], key: str, other: str) -> bool:
    """Return whether all runs with the same value of `key` have the same value of `other`."""
    values: dict[str, str] = {}
    return all(values.setdefault(_text(run, key), _text(run, other)) == _text(run, other) for run in runs)


def label_order(values: Sequence[Any]) -> dict[str, int]:
    """Return the place of each label of these values: of no value, then of numbers by size, then of texts.

    >>> label_order(["b", 10, 9.5, "a", 10])
    {'-': 0, '9.5': 1, '10': 2, 'a': 3, 'b': 4}
    """
    numbers = {v for v in values if isinstance(v, int | float) and not isinstance(v, bool)}
    texts = {as_text(v) for v in values if not isinstance(v, int | float) or isinstance(v, bool)}
    ordered = ["-", *map(as_text, sorted(numbers)), *sorted(texts)]
    return {text: place for place, text in enumerate(ordered)}


_NO_COPY = (RunStatus.MISSING, RunStatus.NOT_STARTED, RunStatus.DAMAGED, SEVERAL)


def _stretches_text(run: Run) -> str:
    """Return the config of each stretch in words: `duration 20, optimizer.lr 0.001 until update 20, then ...`."""
    return ", then ".join(
        ", ".join(f"{key} {shown(value)}" for key, value in stretch["config"].items())
        + ("" if stretch["end"] is None else f" until update {stretch['end']:,}")
        for stretch in run.summary["stretches"]
    )


def mark_uncounted(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """Return the runs. Those that continued with another config say which config trained which updates; among runs that
    no key tells apart, the newest finished one counts.
    """
    runs = [
        replace(run, state=SEVERAL, error=_stretches_text(run)) if run.summary.get("stretches") else run
        for run in runs
    ]
    jobs: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.state not in _NO_COPY:
            jobs.setdefault(tuple(label(run, key) for key in keys), []).append(run)
    counted = {
        run.name: max(copies, key=lambda run: (run.state == RunStatus.FINISHED, run.last_logged)).name
        for copies in jobs.values()
        for run in copies
    }
    return [_marked(run, counted.get(run.name, run.name)) for run in runs]


def _marked(run: Run, counted: str) -> Run:
    if run.name == counted:
        return run
    error = "; ".join(filter(None, [f"the same job as {counted}, which counts", run.error]))
    return replace(run, state=REPEAT, repeats=counted, error=error)


def flat_with_added_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat config with the keys that were added since, and without those removed since."""
    added, removed = dict(flat.key_tables()[""]), set[str]()
    for key, target in config.items():
        group, _, name = key.rpartition(".")
        if name == "_target_":
            new = flat.key_tables().get(str(target), {})
            added |= {f"{group}.{name}": value for name, value in new.items()}
            removed |= {f"{group}.{name}" for name in flat.key_tables()["removed"].get(str(target), ())}
    return {key: value for key, value in (added | dict(config)).items() if key not in removed}
