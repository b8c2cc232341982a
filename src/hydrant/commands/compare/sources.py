"""Read the runs that the words of the command line name, from run folders or from W&B."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydrant.checks import near_folders
from hydrant.commands.compare.collection import same_question
from hydrant.commands.compare.reader import RunReader
from hydrant.commands.compare.run import WANDB_PREFIX, Run
from hydrant.errors import ConfigError
from hydrant.runs.folder import SWEEP_PLAN, RunStatus, choices_in, is_run_folder, newest_folders
from hydrant.sweeps.plan import usable_plan
from hydrant.terminal.console import notice, relative


def read_runs(
    words: Sequence[str],
    by: Sequence[str] = (),
    reader: RunReader | None = None,
    tell: Callable[[str], None] = notice,
) -> list[Run]:
    """Read the runs of all words, each once; named after their folders if these names differ.

    A word is a run folder, a sweep, a glob of folders, `wandb:...`, or a folder that collects runs and sweeps, such as
    `outputs`. Of a collection, only the runs with the data and task of its newest run are read; `tell` gets a sentence
    that names the others. Runs may differ in the keys and groups of `by`.

    Raises:
        ConfigError: a word matches nothing, or there are no runs.
    """
    reader = reader or RunReader()
    return _with_short_names(_read(words, partial(_read_same_question, by=by, reader=reader, tell=tell)))


def read_runs_by_path(words: Sequence[str]) -> list[Run]:
    """Read the runs of all words as `read_runs` does, but all of a collection, and name them by their paths.

    Raises:
        ConfigError: a word matches nothing, or there are no runs.
    """
    return _read(words, partial(_read_word, reader=RunReader(), tell=notice))


def _read(words: Sequence[str], read_word: Callable[[str], Sequence[Run]]) -> list[Run]:
    if not words:
        example = newest_folders("hydrant compare multirun/lr_study")
        raise ConfigError("RUNS", f"give run folders, sweeps or globs{example}")
    runs = {run.name: run for word in words for run in read_word(word)}
    if not runs:
        needed = "give run folders, which hold config.yaml"
        raise ConfigError("RUNS", f"no runs found in {', '.join(words)}; {needed}")
    return _without_copies(list(runs.values()))


def _read_same_question(
    word: str, by: Sequence[str], reader: RunReader, tell: Callable[[str], None]
) -> Sequence[Run]:
    runs, folder = _read_word(word, reader, tell), Path(word)
    is_collection = folder.is_dir() and not is_run_folder(folder) and not (folder / SWEEP_PLAN).exists()
    if not is_collection:
        return runs
    kept, left_out = same_question(runs, by)
    if left_out:
        pattern = shlex.quote(f"{folder}/*")
        tell(f"{left_out}; hydrant compare {pattern} compares all runs of {word}")
    return kept


def _read_word(word: str, reader: RunReader, tell: Callable[[str], None]) -> Sequence[Run]:
    if word.startswith(WANDB_PREFIX):
        from hydrant.commands.compare.wandb_source import read_wandb_runs  # uses the W&B SDK

        return read_wandb_runs(word)
    paths = [Path(p) for p in sorted(glob.glob(word, recursive=True))]  # noqa: PTH207  # Path.glob rejects absolute ones
    if not paths:
        remedy = near_folders(Path(word)) or "give run folders, sweeps or globs of them"
        raise ConfigError("RUNS", f"{word!r} is not a folder", remedy=remedy)
    return [run for path in paths for run in _read_below(path, reader, tell)]


def _read_below(path: Path, reader: RunReader, tell: Callable[[str], None]) -> list[Run]:
    """Read a run folder, or the runs below a folder with the jobs of a sweep that never started."""
    if not path.is_dir():  # a glob also finds files such as sweep.csv
        return []
    if is_run_folder(path):
        return [reader.read(path)]
    folders = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.is_symlink() and p.name[0] != "."]
    runs = [run for folder in folders for run in _read_below(folder, reader, tell)]
    return runs + _missing_jobs(path, runs, tell) if (path / SWEEP_PLAN).exists() else runs


def _missing_jobs(sweep: Path, runs: Sequence[Run], tell: Callable[[str], None]) -> list[Run]:
    """Return the jobs of the sweep's newest command that have no folder. Their configs are partial."""
    begun = {run.name for run in runs}
    plan, damage = usable_plan(sweep)
    if damage:
        tell(damage)
    planned = {relative(Path(os.path.realpath(job.folder))): job for job in plan.jobs}
    common = _common_values([run.config for run in runs])
    missing: list[Run] = []
    for name, job in planned.items():
        if name not in begun:
            choices = choices_in(job.overrides)
            config = common | {key: _value(key, text, runs) for key, text in choices.items() if key != "name"}
            missing.append(Run(name, RunStatus.MISSING, config, choices, summary={}, folder=job.folder))
    return missing


def _common_values(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys with the same value in all configs."""
    first = configs[0] if configs else {}
    return {k: v for k, v in first.items() if all(k in other and other[k] == v for other in configs)}


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
    remote = {run.wandb_id: run for run in runs if run.name.startswith(WANDB_PREFIX)}
    folder_ids = {run.wandb_id for run in runs if not run.name.startswith(WANDB_PREFIX)}
    read_twice, kept = remote.keys() & folder_ids, list[Run]()
    for run in runs:
        if run.wandb_id not in read_twice:
            kept.append(run)
        elif not run.name.startswith(WANDB_PREFIX):
            address = {"wandb": remote[run.wandb_id].summary["wandb"]}  # it may have been uploaded later
            kept.append(replace(run, is_read_twice=True, summary={**run.summary, **address}))
    return kept


def _with_short_names(runs: list[Run]) -> list[Run]:
    """Return the runs with the names of their folders, if these differ."""
    names = [run.title or Path(run.name).name for run in runs]
    if len(set(names)) < len(runs):
        return runs
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
