"""One trial of an Optuna study: its storage in the folder of the sweep, and pruning. Imports Optuna only when used."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.errors import log_errors
from hydrant.training.early_stopping import Pruning

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from hydrant.training.distributed.world import World

JOURNAL = "study.journal"
"""The file of a study in the folder of its sweep. Several processes and machines write it."""


@dataclass(frozen=True)
class Trial:
    """The study and the trial to which a job belongs, in plain types that are sent between processes."""

    number: int
    study: str
    folder: str  # the folder of the sweep
    objectives: list[dict[str, str]]  # metric and mode of each
    pruner: Mapping[str, Any] | None  # `_target_` and its arguments; None with several objectives


def open_storage(folder: Path) -> BaseStorage:
    """Open the journal in the folder of a sweep; create it if needed."""
    from optuna import logging, storages
    from optuna.storages.journal import JournalFileBackend

    logging.set_verbosity(logging.WARNING)
    file = folder.resolve() / JOURNAL  # the lock is a link to this path; a relative one would dangle
    return storages.JournalStorage(JournalFileBackend(str(file)))


def drop_torn_line(folder: Path) -> None:
    """Remove an incomplete last line of the journal, which a kill leaves: the next line would be appended to it."""
    file = folder / JOURNAL
    if not file.exists() or (text := file.read_bytes()).endswith(b"\n"):
        return
    with file.open("r+b") as opened:
        opened.truncate(text.rfind(b"\n") + 1)


def make_part(node: Any, **more: Any) -> Any:
    """Build a sampler or a pruner from its node (`_target_` and arguments); `more` replaces arguments."""
    from optuna.exceptions import ExperimentalWarning

    if not isinstance(node, Mapping) or "_target_" not in node:
        return node
    module, _, name = node["_target_"].rpartition(".")
    arguments = {key: make_part(value) for key, value in node.items() if key != "_target_"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return getattr(importlib.import_module(module), name)(**{**arguments, **more})


class StudyPruning(Pruning):
    """Rank 0 reports each evaluation to the study; its pruner compares trials after the same number of evaluations."""

    def __init__(self, trial: Trial, world: World) -> None:
        self._trial, self._world = trial, world
        self._study: Any = None  # and its storage, when the first evaluation is reported

    def ends(self, row: Mapping[str, float], num_evaluations: int) -> bool:
        value = row.get(self._trial.objectives[0]["metric"])
        return self._world.broadcast_from_rank_zero(lambda: self._report(value, num_evaluations))

    def _report(self, value: float | None, num_evaluations: int) -> bool:
        """Report the value of an evaluation, if there is one, and return whether the pruner ends the trial."""
        if value is None:
            return False
        trial = self._trial
        with log_errors("the study cannot be updated; training continues"):
            from optuna import load_study

            if self._study is None:
                pruner, storage = make_part(trial.pruner), open_storage(Path(trial.folder))
                self._study = load_study(study_name=trial.study, storage=storage, pruner=pruner), storage
            study, storage = self._study
            study_id = storage.get_study_id_from_name(trial.study)
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
            storage.set_trial_intermediate_value(trial_id, num_evaluations, value)
            return bool(study.pruner.prune(study, storage.get_trial(trial_id)))
        return False


def pruning_of(trial: Trial | None, world: World) -> Pruning:
    """Return the pruning of a job; a job without a trial or a pruner is never pruned."""
    return Pruning() if trial is None or trial.pruner is None else StudyPruning(trial, world)
