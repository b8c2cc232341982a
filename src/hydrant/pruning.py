"""A run as a trial of a study: each of its evaluations is told there, and the study may end it early."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hydrant.distributed import World
from hydrant.logs import told
from hydrant.studies import Trial, make_part, open_storage


class Pruning(Protocol):
    """Whether a run is to end before its horizon."""

    def ends(self, row: Mapping[str, float], num_evaluations: int) -> bool:
        """Asked after every evaluation, which the row holds; the same on all ranks."""
        ...


class NeverPruned:
    """Of a run that is no trial, or a trial of several objectives: no pruner can decide between them."""

    def ends(self, row: Mapping[str, float], num_evaluations: int) -> bool:
        return False


class StudyPruning:
    """Rank 0 tells the study and asks its pruner, which compares the trials after the same number of evaluations."""

    def __init__(self, trial: Trial, world: World) -> None:
        self._trial, self._world = trial, world
        self._study: Any = None

    def ends(self, row: Mapping[str, float], num_evaluations: int) -> bool:
        return self._world.from_rank_zero(lambda: self._asked(row, num_evaluations))

    def _asked(self, row: Mapping[str, float], num_evaluations: int) -> bool:
        value = row.get(self._trial.objectives[0]["metric"])
        if value is None:
            return False
        with told("the study cannot be told; training goes on"):
            return self._report(value, num_evaluations)
        return False

    def _report(self, value: float, num_evaluations: int) -> bool:
        from optuna import load_study

        own = self._trial
        if self._study is None:
            pruner, storage = make_part(own.pruner), open_storage(own.storage, Path(own.folder))
            self._study = load_study(study_name=own.study, storage=storage, pruner=pruner), storage
        study, storage = self._study
        study_id = storage.get_study_id_from_name(own.study)
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, own.number)
        storage.set_trial_intermediate_value(trial_id, num_evaluations, value)
        return bool(study.pruner.prune(study, storage.get_trial(trial_id)))


def pruning_of(trial: Trial | None, world: World) -> Pruning:
    """What a job of this trial, or of none, asks."""
    return NeverPruned() if trial is None or trial.pruner is None else StudyPruning(trial, world)
