"""One trial of an Optuna study: its storage in the folder of the sweep, and pruning. Imports Optuna only when used."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.errors import log_errors

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

    from hydrant.training.trainer import Trainer

JOURNAL = "study.journal"
"""The file of a study in the folder of its sweep. Several processes and machines write it."""


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


@dataclass
class Pruner:
    """Rank 0 reports each evaluation to the study; its pruner compares trials after the same number of evaluations."""

    number: int  # of the trial
    study: str
    folder: str  # of the sweep
    metric: str
    pruner: Mapping[str, Any]  # `_target_` and its arguments

    _study = None  # and its storage, when the first evaluation is reported

    def after_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        plan, state = trainer.plan, trainer.state
        if state.num_updates:  # not of the untrained model
            num_evaluations = plan.intervals.eval_every.count(state.num_updates - 1) + 1
            ends = plan.world.broadcast_from_rank_zero(
                lambda: self._report(row.get(self.metric), num_evaluations)
            )
            state.is_pruned = ends and state.num_updates < plan.clock.total_updates

    def _report(self, value: float | None, num_evaluations: int) -> bool:
        """Report the value of an evaluation, if there is one, and return whether the pruner ends the trial."""
        if value is None:
            return False
        with log_errors("the study cannot be updated; training continues"):
            from optuna import load_study

            if self._study is None:
                pruner, storage = make_part(self.pruner), open_storage(Path(self.folder))
                self._study = load_study(study_name=self.study, storage=storage, pruner=pruner), storage
            study, storage = self._study
            study_id = storage.get_study_id_from_name(self.study)
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, self.number)
            storage.set_trial_intermediate_value(trial_id, num_evaluations, value)
            return bool(study.pruner.prune(study, storage.get_trial(trial_id)))
        return False
