"""The trials of a study, with its sampler and pruner.

Optuna's storage in the sweep's folder keeps them, so that the same command continues.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from hydrant.config.flat import flatten, is_neutral
from hydrant.config.signatures import check_arguments
from hydrant.errors import ConfigError, typed_line
from hydrant.files.redaction import redacted
from hydrant.runs.folder import choices_in
from hydrant.runs.optuna_trial import FILES, Trial, drop_torn_line, make_part, open_storage
from hydrant.safety.targets import locate, target_nodes
from hydrant.seeding import hash_of
from hydrant.sweeps.optuna.objectives import Objective
from hydrant.sweeps.optuna.space import Space

SAMPLER, PRUNER = "hydra.sweeper.sampler", "hydra.sweeper.pruner"


def check_parts(sampler: Mapping[str, Any], pruner: Mapping[str, Any], space: Space) -> None:
    """Check that the nodes name a sampler and a pruner of Optuna that accept their arguments.

    Raises:
        ConfigError: names the key.
    """
    for key, node, kind in ((SAMPLER, sampler, BaseSampler), (PRUNER, pruner, BasePruner)):
        for name, inner in target_nodes(node, key):
            target = locate(inner["_target_"], f"{name}._target_")
            if not (isinstance(target, type) and issubclass(target, (BaseSampler, BasePruner))):
                message = f"{inner['_target_']} is no sampler or pruner of Optuna"
                raise ConfigError(f"{name}._target_", message)
            is_grid = name == SAMPLER and _is_a(inner, "GridSampler")
            check_arguments(name, {**({"search_space": {}} if is_grid else {}), **inner})
        try:
            part = make_sampler(node, space, 0) if kind is BaseSampler else make_part(node)
        except ConfigError:
            raise
        except Exception as error:  # the constructor may raise anything for wrong arguments
            raise ConfigError(key, f"{node.get('_target_')} refuses it: {typed_line(error)}") from error
        if not isinstance(part, kind):
            group = key.removeprefix("hydra.sweeper.")
            raise ConfigError(
                key, f"{part!r} is no {kind.__name__}", remedy=f"choose one: hydra/sweeper/{group}="
            )


def make_sampler(node: Mapping[str, Any], space: Space, number: int) -> BaseSampler:
    """Return the sampler of one trial, whose seed is a function of the study's seed and the trial's number.

    A resumed study therefore draws what an uninterrupted one draws. Grid and quasi-random samplers keep one seed in
    all trials: they walk through a sequence, and the study stores the position in it.
    """
    seed = node.get("seed")
    trial_seed = None if seed is None else hash_of(seed, number) % 2**32
    if _is_a(node, "GridSampler"):
        return make_part(node, search_space=space.grid())
    if _is_a(node, "QMCSampler"):
        return make_part(node, independent_sampler=RandomSampler(trial_seed))
    return make_part(node, **({} if seed is None else {"seed": trial_seed}))


def grid_size(node: Mapping[str, Any], space: Space) -> int | None:
    """Return how many trials a sampler can draw; None for unlimited."""
    return math.prod(map(len, space.grid().values())) if _is_a(node, "GridSampler") else None


def _is_a(node: Mapping[str, Any], name: str) -> bool:
    return str(node.get("_target_")).rpartition(".")[2] == name


_SEARCH = "search"


@dataclass(frozen=True)
class Search:
    """The definition of a study: what is searched, and how."""

    space: Space
    objectives: Sequence[Objective]
    sampler: Mapping[str, Any]
    pruner: Mapping[str, Any]

    def describe(self) -> dict[str, Any]:
        """Return, by key, the values that must not change when a study continues."""
        fixed = choices_in(redacted(list(self.space.fixed)))
        parts = {"sampler": self.sampler, "pruner": self.pruner}
        return {
            **{key: text for key, text in fixed.items() if not is_neutral(key)},
            **{key.lstrip("+"): text for key, text in self.space.texts.items()},
            **flatten({"hydra": {"sweeper": parts}}),
            "hydra.sweeper.objectives": [asdict(objective) for objective in self.objectives],
        }


@dataclass(frozen=True)
class PendingTrial:
    """A trial that must run."""

    number: int
    params: Mapping[str, Any]  # by key
    has_begun: bool = False  # in an earlier start of the study


class Trials:
    """The study in the folder of a sweep: created, or loaded if it exists.

    Raises:
        ConfigError: the folder holds another study.
    """

    def __init__(self, folder: Path, storage: str, search: Search) -> None:
        self.folder, self.search, self._storage = folder, search, storage
        self.size = grid_size(search.sampler, search.space)
        _check_storage(folder, storage)
        drop_torn_line(folder)
        self._study = optuna.create_study(
            study_name=folder.name,
            storage=open_storage(storage, folder),
            pruner=make_part(search.pruner),
            directions=["maximize" if o.mode == "max" else "minimize" for o in search.objectives],
            load_if_exists=True,
        )
        self._check_same_search()
        if _SEARCH not in self._study.user_attrs:
            self._study.set_user_attr(_SEARCH, search.describe())
        self.interrupted = [trial.number for trial in self._all(TrialState.RUNNING)]  # in an earlier start

    @property
    def num_finished(self) -> int:
        return len(self._all(TrialState.COMPLETE, TrialState.PRUNED))

    @property
    def is_exhausted(self) -> bool:
        """Whether the sampler has drawn all trials of its grid."""
        return self.size is not None and len(self._study.get_trials(deepcopy=False)) >= self.size

    def ask(self) -> PendingTrial:
        """Return the next trial to run: an interrupted one first, else a new one."""
        number = self.interrupted.pop(0) if self.interrupted else len(self._study.get_trials(deepcopy=False))
        self._study.sampler = make_sampler(self.search.sampler, self.search.space, number)
        begun = {trial.number: trial for trial in self._all(TrialState.RUNNING)}.get(number)
        trial = self._study.ask() if begun is None else optuna.Trial(self._study, begun._trial_id)  # pyright: ignore[reportPrivateUsage]
        # A kill may have left some parameters without a value. Those with a value keep it.
        for key, distribution in self.search.space.distributions.items():
            _suggest(trial, key, distribution)
        return PendingTrial(number, trial.params, has_begun=begun is not None)

    def take_known(self, trial: PendingTrial) -> int | None:
        """Record for a trial what an ended one with its parameters reached, which would train the same.

        Returns:
            the number of that one; None if there is none.
        """
        ended = self._all(TrialState.COMPLETE, TrialState.PRUNED)
        known = next((one for one in ended if one.params == trial.params), None)
        if known is None:
            return None
        self.tell(trial.number, known.values, is_pruned=known.state == TrialState.PRUNED)
        return known.number

    def for_job(self, trial: PendingTrial) -> Trial:
        """Return what the job of a trial needs to report to the study."""
        objectives = [asdict(objective) for objective in self.search.objectives]
        return Trial(
            number=trial.number,
            study=self._study.study_name,
            storage=self._storage,
            folder=str(self.folder.resolve()),
            objectives=objectives,
            pruner=dict(self.search.pruner) if len(objectives) == 1 else None,
        )

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool = False) -> None:
        """Record how a trial ended: finished with `values`, pruned, or failed."""
        state = TrialState.PRUNED if is_pruned else TrialState.FAIL if values is None else TrialState.COMPLETE
        # After its last trial, a grid sampler would call study.stop(), which fails outside of study.optimize().
        self._study.sampler = optuna.samplers.RandomSampler()
        self._study.tell(number, values=None if is_pruned else values, state=state)

    def best(self) -> list[FrozenTrial]:
        """Return the best trial; with several objectives, the Pareto front."""
        if not self._all(TrialState.COMPLETE):
            return []
        return self._study.best_trials if len(self.search.objectives) > 1 else [self._study.best_trial]

    def _all(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _check_same_search(self) -> None:
        old, new = self._study.user_attrs.get(_SEARCH), json.loads(json.dumps(self.search.describe()))
        if old in (None, new):
            return
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        changes = ", ".join(f"{key} ({_shown(old, key)} there, {_shown(new, key)} here)" for key in changed)
        problem = f"{self.folder} holds a study of another search: {changes}"
        raise ConfigError("name", problem, remedy="Give the same, or another name=<folder>")


def _suggest(trial: optuna.Trial, key: str, distribution: Any) -> None:
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
        return
    suggest: Any = trial.suggest_float if isinstance(distribution, FloatDistribution) else trial.suggest_int
    step = {} if distribution.log else {"step": distribution.step}
    suggest(key, distribution.low, distribution.high, log=distribution.log, **step)


def _shown(search: Mapping[str, Any], key: str) -> str:
    return json.dumps(search[key]) if key in search else "nothing"


def _check_storage(folder: Path, storage: str) -> None:
    key = "hydra.sweeper.storage"
    if storage not in FILES:
        raise ConfigError(key, needs=" or ".join(FILES), got=storage)
    for other, file in FILES.items():
        if other != storage and (folder / file).exists():
            message = f"{folder / file} holds a study"
            raise ConfigError(key, message, remedy=f"give {key}={other}, or another name=<folder>")
