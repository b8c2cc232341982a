"""The trials of a study, which lie on disk: asked for, told, and gone on with when the study is started again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from hydrant.config.plain import flatten, is_free
from hydrant.errors import ConfigError
from hydrant.objectives import Objective
from hydrant.redaction import redacted
from hydrant.runs import choices_in
from hydrant.studies import FILES, Trial, drop_torn_line, make_part, open_storage
from hydrant.study.parts import grid_size, make_sampler
from hydrant.study.space import Space

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_SEARCH = "search"
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Search:
    """What is searched, and how."""

    space: Space
    objectives: Sequence[Objective]
    sampler: Mapping[str, Any]
    pruner: Mapping[str, Any]

    def described(self) -> dict[str, Any]:
        """By key, what makes it another search if it changes."""
        fixed = choices_in(redacted(list(self.space.fixed)))
        told = {key: text for key, text in fixed.items() if not is_free(key)}
        parts = {"sampler": self.sampler, "pruner": self.pruner}
        told |= {key.lstrip("+"): text for key, text in self.space.given.items()}
        told |= flatten({"hydra": {"sweeper": parts}})
        return told | {"hydra.sweeper.objectives": [asdict(objective) for objective in self.objectives]}


@dataclass(frozen=True)
class Asked:
    """A trial to be run."""

    number: int
    params: Mapping[str, Any]  # by key
    has_begun: bool = False  # before this start


class Trials:
    """A study in the folder of a sweep.

    Raises:
        ConfigError: another search lies there.
    """

    def __init__(self, folder: Path, storage: str, search: Search) -> None:
        self.folder, self._storage, self._search = folder, storage, search
        self.size = grid_size(search.sampler, search.space)
        _refuse_other_storage(folder, storage)
        drop_torn_line(folder)
        self._study = optuna.create_study(
            study_name=folder.name,
            storage=open_storage(storage, folder),
            pruner=make_part(search.pruner),
            directions=["maximize" if o.mode == "max" else "minimize" for o in search.objectives],
            load_if_exists=True,
        )
        self._refuse_another()
        if _SEARCH not in self._study.user_attrs:
            self._study.set_user_attr(_SEARCH, search.described())
        self.begun = [
            trial.number for trial in self._all(TrialState.RUNNING)
        ]  # before this start, and not ended

    @property
    def num_finished(self) -> int:
        return len(self._all(*_FINISHED))

    @property
    def is_exhausted(self) -> bool:
        """Whether the sampler has no more trials to give."""
        return self.size is not None and len(self._study.get_trials(deepcopy=False)) >= self.size

    def ask(self) -> Asked:
        """A trial to run: one that has begun before, else a new one."""
        number = self.begun.pop(0) if self.begun else len(self._study.get_trials(deepcopy=False))
        self._study.sampler = make_sampler(self._search.sampler, self._search.space, number)
        known = {trial.number: trial for trial in self._all(TrialState.RUNNING)}.get(number)
        # What a kill left half asked for is asked for to its end.
        trial = self._study.ask() if known is None else optuna.Trial(self._study, _id(known))
        for key, distribution in self._search.space.distributions.items():
            _suggest(trial, key, distribution)
        return Asked(number, trial.params, has_begun=known is not None)

    def told_of(self, asked: Asked) -> Trial:
        """What the job of a trial is told."""
        objectives, pruner = [asdict(o) for o in self._search.objectives], dict(self._search.pruner)
        is_single = len(objectives) == 1
        return Trial(
            number=asked.number,
            study=self._study.study_name,
            storage=self._storage,
            folder=str(self.folder.resolve()),
            objectives=objectives,
            pruner=pruner if is_single else None,
        )

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool = False) -> None:
        """How a trial ended: with values, pruned, or else failed."""
        state = TrialState.PRUNED if is_pruned else TrialState.FAIL if values is None else TrialState.COMPLETE
        self._study.sampler = optuna.samplers.RandomSampler()  # a grid would stop a loop that is not Optuna's
        self._study.tell(number, values=None if is_pruned else values, state=state)

    def best(self) -> list[FrozenTrial]:
        """The best trial; of several objectives, those that no other one beats in all of them."""
        if not self._all(TrialState.COMPLETE):
            return []
        return self._study.best_trials if len(self._search.objectives) > 1 else [self._study.best_trial]

    def _all(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _refuse_another(self) -> None:
        before, now = self._study.user_attrs.get(_SEARCH), json.loads(json.dumps(self._search.described()))
        if before in (None, now):
            return
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        told = ", ".join(f"{key} ({_shown(before, key)} there, {_shown(now, key)} here)" for key in changed)
        raise ConfigError(
            "name",
            f"{self.folder} holds a study of another search: {told}. Give the same, or another name=<folder>",
        )


def _suggest(trial: optuna.Trial, key: str, distribution: Any) -> None:
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
        return
    suggest: Any = trial.suggest_float if isinstance(distribution, FloatDistribution) else trial.suggest_int
    step = {} if distribution.log else {"step": distribution.step}
    suggest(key, distribution.low, distribution.high, log=distribution.log, **step)


def _id(trial: FrozenTrial) -> int:
    return trial._trial_id  # pyright: ignore[reportPrivateUsage]


def _shown(search: Mapping[str, Any], key: str) -> str:
    return json.dumps(search[key]) if key in search else "nothing"


def _refuse_other_storage(folder: Path, storage: str) -> None:
    if storage not in FILES:
        raise ConfigError("hydra.sweeper.storage", f"{' or '.join(FILES)}, not {storage}")
    for other, file in FILES.items():
        if other != storage and (folder / file).exists():
            told = (
                f"{folder / file} holds a study; give hydra.sweeper.storage={other}, or another name=<folder>"
            )
            raise ConfigError("hydra.sweeper.storage", told)
