"""What is asked, and about which runs: the options, and the runs in folders or of a service such as W&B."""

import glob
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from hydrant.config.flat import flatten, group_choices
from hydrant.config.metric_keys import Target, parse_target
from hydrant.errors import ConfigError, RecordError, near_folders
from hydrant.extensions.compare import SERVICES
from hydrant.extensions.compare.run import Run, as_text, flat_with_added_keys, is_data_key, with_averages
from hydrant.files.plain_values import Positive, check_value, hints_of
from hydrant.installation import entry_points
from hydrant.runs import folder as run_folder
from hydrant.runs.folder import RunFolder, RunStatus
from hydrant.runs.record import read_metrics
from hydrant.sweeps.plan import usable_plan
from hydrant.terminal.console import notice, relative


@dataclass(frozen=True, kw_only=True)
class Question:
    """Each field is named like its option. `hydrant.compare` explains them.

    Raises:
        ConfigError: a number or a target is impossible, or an option is given without another one that it needs.
    """

    by: Sequence[str] | None = None
    best_over: Sequence[str] | None = None
    metric: str | None = None
    mode: Literal["max", "min"] | None = None
    baseline: str | None = None
    target: str | None = None
    against: str | None = None
    sigma: Positive | None = None
    critical: Positive | None = None
    difference: Positive | None = None
    tolerance: Positive | None = None
    tuned: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            if (value := getattr(self, name)) is not None:
                check_value(f"--{name.replace('_', '-')}", get_args(hint)[0], value)
        _ = self.goal, self.fixed_target  # raise for a text that is no target
        for name, needed in (("critical", "sigma"), ("sigma", "against")):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ConfigError(f"--{name}", needs=f"--{needed} too")

    @property
    def varied(self) -> list[str]:
        """The keys in which the runs of a folder may differ."""
        return [*(self.by or ()), *(self.best_over or ())]

    @property
    def goal(self) -> Target | None:
        """The value of `target`, until which times are measured."""
        return None if self.target is None else parse_target(self.target, "--target")

    @property
    def fixed_target(self) -> Target | None:
        """The value of `against`, which means are tested against."""
        return None if self.against is None else parse_target(self.against, "--against")


_OPTIONS = ("data", "task", "debug")
"""The config groups that say what is trained. Their options determine many of the other keys."""

_SAME_FOR_ALL = ("data.augment", "data.train_transform", "data.collate", "data.test", "limit_test_samples")
"""The beginnings of data keys in which runs may differ: how samples are prepared for training, and the test split."""


def same_question(runs: Sequence[Run], by: Sequence[str] = ()) -> tuple[list[Run], str]:
    """Return the runs with the data, the task, the `debug` option and the metric of the newest run.

    They may differ in the keys of `by`, and in those of a group of `by`.

    The newest run has logged last: of those without `debug`, if there are any, and of these the finished
    ones, if there are any.

    The second result is a sentence that counts the runs that are left out by the keys in which they differ; "" if none
    are.
    """
    if not runs:
        return [], ""
    newest = max(
        runs, key=lambda r: (r.config.get("debug") is None, r.state == RunStatus.FINISHED, r.last_logged)
    )
    left_out = {run.name: keys for run in runs if (keys := _differing(run, newest, by))}
    if not left_out:
        return list(runs), ""
    reasons = [", ".join(keys) for keys in left_out.values()]
    num_of = {keys: reasons.count(keys) for keys in reasons}
    reasons = [f"{num} differ{'s' * (num == 1)} in {keys}" for keys, num in num_of.items()]
    text = f"{len(left_out)} of {len(runs)} runs are left out, because they train something else than {newest.name}"
    return [run for run in runs if run.name not in left_out], f"{text}: {'; '.join(reasons)}"


def _differing(run: Run, newest: Run, by: Sequence[str]) -> list[str]:
    """Return the keys that make the run answer another question. The options stand for the keys that they set."""
    one, two = run.config, newest.config
    # Else a run failed early.
    are_whole = all(any(key.startswith("data.") for key in config) for config in (one, two))
    keys = {*one, *two} if are_whole else {*one}.intersection(two)
    # A key that was added to Hydrant later is null in earlier runs.
    differing = [k for k in sorted(keys) if _counts(k, by) and as_text(one.get(k)) != as_text(two.get(k))]
    return [key for key in _OPTIONS if key in differing] or differing


def _counts(key: str, by: Sequence[str]) -> bool:
    if any(key == asked or key.startswith(f"{asked}.") for asked in by):
        return False
    return key in (*_OPTIONS, "best.metric") or (is_data_key(key) and not key.startswith(_SAME_FOR_ALL))


def _read_run(folder: Path) -> Run:
    name, record = relative(folder.resolve()), RunFolder(folder)
    try:
        saved, options = flatten(record.config), run_folder.read_options(folder)
    except RecordError as error:
        return Run(name, RunStatus.DAMAGED, {}, {}, {}, error=str(error), folder=folder)
    config = (flat_with_added_keys(saved) if saved else {}) | group_choices(options)
    config = config or dict(record.choices)  # a run that failed early has no config
    has_own_name = not (folder.resolve().parent / run_folder.SWEEP_PLAN).exists()
    facts = record.state, config, record.choices, record.summary
    run = Run(name, *facts, error=record.error, has_own_name=has_own_name, folder=folder)
    try:
        rows = read_metrics(folder)
    except RecordError as error:
        return replace(run, state=RunStatus.DAMAGED, error=str(error))
    return run.with_rows(rows)


def read_runs(
    words: Sequence[str], by: Sequence[str] = (), tell: Callable[[str], None] = notice
) -> list[Run]:
    """Read the runs of all words, each once; named after their folders if these names differ.

    A word is a run folder, a sweep, a glob of folders, `wandb:...`, or a folder that collects runs and sweeps, such as
    `outputs`. Of a collection, only the runs with the data and task of its newest run are read; `tell` gets a sentence
    that names the others. Runs may differ in the keys and groups of `by`.

    Raises:
        ConfigError: a word matches nothing, or there are no runs.
    """
    runs = _read(words, by, tell)
    names = [run.title or Path(run.name).name for run in runs]
    if len(set(names)) < len(runs):
        return runs
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def read_runs_by_path(words: Sequence[str]) -> list[Run]:
    """Read the runs of all words as `read_runs` does, but all of a collection, and name them by their paths.

    Raises:
        ConfigError: a word matches nothing, or there are no runs.
    """
    return _read(words, None, notice)


def _read(words: Sequence[str], by: Sequence[str] | None, tell: Callable[[str], None]) -> list[Run]:
    if not words:
        example = run_folder.newest_folders("hydrant compare multirun/lr_study")
        raise ConfigError("RUNS", remedy=f"give run folders, sweeps or globs{example}")
    runs = {run.name: run for word in words for run in _read_word(word, by, tell)}
    if not runs:
        remedy = "give run folders, which hold config.yaml"
        raise ConfigError("RUNS", f"no runs found in {', '.join(words)}", remedy=remedy)
    return with_averages(_without_copies(list(runs.values())))


def _read_word(word: str, by: Sequence[str] | None, tell: Callable[[str], None]) -> Sequence[Run]:
    if service := entry_points(SERVICES).get(word.partition(":")[0]):
        return service.load().read_runs(word)
    paths = [Path(p) for p in sorted(glob.glob(word, recursive=True))]  # noqa: PTH207  # Path.glob rejects absolute ones
    if not paths:
        remedy = near_folders(Path(word)) or "give run folders, sweeps or globs of them"
        raise ConfigError("RUNS", f"{word!r} is not a folder", remedy=remedy)
    runs, folder = [run for path in paths for run in _read_below(path, tell)], Path(word)
    is_job_or_sweep = run_folder.is_run_folder(folder) or (folder / run_folder.SWEEP_PLAN).exists()
    if by is None or is_job_or_sweep or not folder.is_dir():
        return runs
    kept, left_out = same_question(runs, by)
    if left_out:
        tell(f"{left_out}; hydrant compare {shlex.quote(f'{folder}/*')} compares all runs of {word}")
    return kept


def _read_below(path: Path, tell: Callable[[str], None]) -> list[Run]:
    """Read a run folder, or the runs below a folder with the jobs of a sweep that never started."""
    if not path.is_dir():  # a glob also finds files such as sweep.csv
        return []
    if run_folder.is_run_folder(path):
        return [_read_run(path)]
    folders = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.is_symlink() and p.name[0] != "."]
    runs = [run for folder in folders for run in _read_below(folder, tell)]
    return _as_planned(path, runs, tell) if (path / run_folder.SWEEP_PLAN).exists() else runs


def _as_planned(sweep: Path, runs: Sequence[Run], tell: Callable[[str], None]) -> list[Run]:
    """Return the runs of a sweep and its planned jobs. A job without a config gets what its overrides say."""
    named = {run.name: run for run in runs}
    plan, damage = usable_plan(sweep)
    if damage:
        tell(damage)
    configs = [run.config for run in runs if run.config] or [{}]
    common = {k: v for k, v in configs[0].items() if all(k in other and other[k] == v for other in configs)}
    for job in plan.jobs:
        name, folder = relative(Path(os.path.realpath(sweep / job.run))), sweep / job.run
        run = named.get(name) or Run(name, RunStatus.MISSING, {}, {}, {}, folder=folder)
        if not run.config and not run.error:
            choices = run_folder.choices_in(job.overrides)
            config = {key: _value(key, text, runs) for key, text in choices.items() if key != "name"}
            named[name] = replace(run, config=common | config, overrides=choices)
    return list(named.values())


def _value(key: str, text: str, runs: Sequence[Run]) -> Any:
    """Return the value of an override: as in other runs of the sweep, else as a number or text."""
    for run in runs:
        if run.overrides.get(key) == text and key in run.config:
            return run.config[key]
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def _without_copies(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without W&B's copies of runs with a folder, because the folder is complete and exact."""
    remote = {run.wandb_id: run for run in runs if run.folder is None}
    folder_ids = {run.wandb_id for run in runs if run.folder}
    read_twice, kept = remote.keys() & folder_ids, list[Run]()
    for run in runs:
        if run.wandb_id not in read_twice:
            kept.append(run)
        elif run.folder:
            address = {"wandb": remote[run.wandb_id].summary["wandb"]}  # it may have been uploaded later
            kept.append(replace(run, is_read_twice=True, summary={**run.summary, **address}))
    return kept
