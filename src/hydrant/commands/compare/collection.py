"""The runs of a folder such as `outputs` that answer the same question as its newest run."""

from __future__ import annotations

from collections.abc import Sequence

from hydrant.commands.compare.config_keys import as_text, is_data_key
from hydrant.commands.compare.run import Run
from hydrant.runs.folder import RunStatus

_OPTIONS = ("data", "task", "debug")
"""The config groups that say what is trained. Their options determine many of the other keys."""
_SAME_FOR_ALL = ("data.augment", "data.train_transform", "data.collate", "data.test", "limit_test_samples")
"""The beginnings of data keys in which runs may differ: how samples are prepared for training, and the test split."""
_MAX_NAMES = 3
"""At most this many runs are named; more are counted."""


def same_question(runs: Sequence[Run], by: Sequence[str] = ()) -> tuple[list[Run], str]:
    """Return the runs with the data, the task, the `debug` option and the metric of the newest run.

    They may differ in the keys of `by`, and in those of a group of `by`.

    The newest run is the one that logged last: of those without `debug`, if there are any, and of these the finished
    ones, if there are any.

    The second result is a sentence that names the runs that are left out, and the keys in which they differ; "" if none
    are.
    """
    if not runs:
        return [], ""
    newest = max(runs, key=_precedence)
    others = {run.name: keys for run in runs if (keys := _differing(run, newest, by))}
    if not others:
        return list(runs), ""
    by_keys = dict[str, list[str]]()
    for name, keys in others.items():
        by_keys.setdefault(", ".join(keys), []).append(name)
    reasons = "; ".join(
        f"{_names(names)} differ{'s' * (len(names) == 1)} in {keys}" for keys, names in by_keys.items()
    )
    text = f"{len(others)} of {len(runs)} runs are left out, because they train something else than {newest.name}"
    return [run for run in runs if run.name not in others], f"{text}: {reasons}"


def _precedence(run: Run) -> tuple[bool, bool, float]:
    return run.config.get("debug") is None, run.state == RunStatus.FINISHED, run.last_logged


def _differing(run: Run, newest: Run, by: Sequence[str]) -> list[str]:
    """Return the keys that make the run answer another question. The options stand for the keys that they set."""
    configs = run.config, newest.config
    # Else a run failed early.
    are_whole = all(any(key.startswith("data.") for key in config) for config in configs)
    keys = set(run.config) | set(newest.config) if are_whole else set(run.config) & set(newest.config)
    differing = [key for key in sorted(keys) if _counts(key, by) and _text(run, key) != _text(newest, key)]
    return [key for key in _OPTIONS if key in differing] or differing


def _counts(key: str, by: Sequence[str]) -> bool:
    if any(key == asked or key.startswith(f"{asked}.") for asked in by):
        return False
    return key in (*_OPTIONS, "best.metric") or (is_data_key(key) and not key.startswith(_SAME_FOR_ALL))


def _text(run: Run, key: str) -> str:
    """Return a value as text. A key that was added to Hydrant later is null in earlier runs."""
    return as_text(run.config.get(key))


def _names(names: Sequence[str]) -> str:
    more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return ", ".join([*names[:_MAX_NAMES], *more])
