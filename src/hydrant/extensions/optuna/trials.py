"""The search space of a study, and its trials: their storage in the folder of the sweep, sampler, pruner and ends.

The space is Hydra's sweep syntax, read as distributions of Optuna. The storage keeps the trials, so that the same
command continues.
"""

from __future__ import annotations

import importlib
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, QuotedString, RangeSweep
from msgspec import to_builtins
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from hydrant.config.command_line import MAX_JOBS, swept_values
from hydrant.config.flat import flatten, is_neutral
from hydrant.config.instantiate import as_config_error, check_arguments
from hydrant.errors import ConfigError, first_line, log_errors
from hydrant.files.redaction import redacted
from hydrant.records import Objective, Trial
from hydrant.runs.folder import choices_in
from hydrant.runs.job import Job
from hydrant.safety.targets import locate, target_nodes
from hydrant.seeding import hash_of

if TYPE_CHECKING:
    from hydrant.training.trainer import Trainer

JOURNAL = "study.journal"
"""The file of a study in the folder of its sweep. Several processes and machines write it."""


def open_storage(folder: Path) -> JournalStorage:
    """Open the journal in the folder of a sweep; create it if needed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = folder.resolve() / JOURNAL  # the lock is a link to this path; a relative one would dangle
    return JournalStorage(JournalFileBackend(str(file)))


def drop_torn_line(folder: Path) -> None:
    """Remove an incomplete last line of the journal, which a kill leaves: the next line would be appended to it."""
    file = folder / JOURNAL
    if not file.exists() or (text := file.read_bytes()).endswith(b"\n"):
        return
    with file.open("r+b") as opened:
        opened.truncate(text.rfind(b"\n") + 1)


def make_part(node: Any, **more: Any) -> Any:
    """Build a sampler or a pruner from its node (`_target_` and arguments); `more` replaces arguments."""
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

    _study = None  # pyrefly: ignore[implicit-any-attribute]  # and its storage, when the first evaluation is reported

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
            if self._study is None:
                pruner, storage = make_part(self.pruner), open_storage(Path(self.folder))
                self._study = (
                    optuna.load_study(study_name=self.study, storage=storage, pruner=pruner),
                    storage,
                )
            study, storage = self._study
            study_id = storage.get_study_id_from_name(self.study)
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, self.number)
            storage.set_trial_intermediate_value(trial_id, num_evaluations, value)
            return bool(study.pruner.prune(study, storage.get_trial(trial_id)))
        return False


_EXAMPLES = "write choice(1, 2), range(1, 9), interval(0.0, 1.0) or tag(log, interval(1e-4, 1e-1))"


@dataclass(frozen=True)
class Space:
    """The search space of a study. Keys are those of the overrides, with their `+`."""

    distributions: Mapping[str, BaseDistribution]
    texts: Mapping[str, str]  # of the same keys: what the user wrote
    fixed: Sequence[str]  # the overrides that are the same in all trials

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial with these parameters. The parameter of a choice is its text."""
        return [*self.fixed, *(f"{key}={value}" for key, value in params.items())]

    def parse_choices(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a trial with the texts of choices parsed as Hydra parses them."""
        parser = OverridesParser.create()
        values = {key: parser.parse_override(f"{key}={value}").value() for key, value in params.items()}
        return {key: v.text if isinstance(v, QuotedString) else v for key, v in values.items()}

    def values(self, key: str) -> list[Any]:
        """Return all choices of a key; of a range or an interval, the lowest and the highest value."""
        distribution: Any = self.distributions[key]
        if isinstance(distribution, CategoricalDistribution):
            return list(distribution.choices)
        return list(dict.fromkeys((distribution.low, distribution.high)))

    def grid(self) -> dict[str, list[Any]]:
        """Return every value of every key.

        Raises:
            ConfigError: the values of a key cannot be listed.
        """
        return {key: _list_values(key, distribution) for key, distribution in self.distributions.items()}


def read_space(overrides: Iterable[Override]) -> Space:
    """Return the search space of parsed overrides. The last override of a key counts.

    Raises:
        ConfigError: names the key whose values cannot be searched.
    """
    last = {override.key_or_group + f"@{override.package or ''}": override for override in overrides}
    searched = {o.get_key_element(): o for o in last.values() if o.is_sweep_override()}
    if not searched:
        message = "nothing to search: all keys have one value"
        raise ConfigError("hydra.sweeper.params", message, remedy=_EXAMPLES)
    fixed = [str(o.input_line) for o in last.values() if not o.is_sweep_override()]
    return Space(
        {key: _distribution(key.lstrip("+"), override) for key, override in searched.items()},
        {key: override.get_value_string() for key, override in searched.items()},
        fixed,
    )


def _distribution(key: str, override: Override) -> BaseDistribution:
    value, text = override.value(), override.get_value_string()
    tags = set(getattr(value, "tags", ())) - ({"log"} if isinstance(value, IntervalSweep) else set())
    values = [] if isinstance(value, IntervalSweep) else swept_values(key, override)
    if tags or (len(values) > MAX_JOBS and not isinstance(values, range)):
        needs = f"no tag but log, that of an interval, and at most {MAX_JOBS:,} values"
        raise ConfigError(key, needs=needs, got=text, remedy=_EXAMPLES)
    try:
        if isinstance(value, IntervalSweep):
            low, high = value.start, value.end
            kind: Any = IntDistribution if {type(low), type(high)} == {int} else FloatDistribution
            return kind(low, high, log="log" in value.tags)
        if isinstance(value, RangeSweep):  # of Hydra: the end is not among its values
            low, high = min(values), max(values)
            kind = IntDistribution if isinstance(values, range) else FloatDistribution
            return kind(low, high, step=abs(value.step))  # pyrefly: ignore[bad-argument-type]  # a range has a whole step
        texts = list(dict.fromkeys(values))
        # Hydra has shuffled them; the order must be the same in each start.
        if getattr(value, "shuffle", False):
            texts.sort()
        return CategoricalDistribution(texts)
    except ValueError as error:  # of Optuna: an end is wrong, or there is no value
        raise ConfigError(key, f"{text} cannot be searched: {first_line(error)}", remedy=_EXAMPLES) from error


def _list_values(key: str, distribution: Any) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    step = distribution.step
    if step is None or distribution.log:
        remedy = ": write choice(0.1, 0.01) or range(1, 9), or choose another hydra/sweeper/sampler"
        raise ConfigError(key.lstrip("+"), "the grid sampler needs values that can be listed", remedy=remedy)
    count = round((distribution.high - distribution.low) / step) + 1
    return [distribution.low + n * step for n in range(count)]


SAMPLER, PRUNER = "hydra.sweeper.sampler", "hydra.sweeper.pruner"


def check_parts(sampler: Mapping[str, Any], pruner: Mapping[str, Any], space: Space) -> None:
    """Check that the nodes name a sampler and a pruner of Optuna that accept their arguments.

    Raises:
        ConfigError: names the key.
    """
    for key, node, kind in ((SAMPLER, sampler, BaseSampler), (PRUNER, pruner, BasePruner)):
        for name, inner in target_nodes(node, key):
            target = locate(inner["_target_"], f"{name}._target_")
            kinds = kind if name == key else (BaseSampler, BasePruner)
            if not (isinstance(target, type) and issubclass(target, kinds)):
                group = key.removeprefix("hydra.sweeper.")
                message = f"{inner['_target_']} is no {group} of Optuna"
                remedy = f"choose one: hydra/sweeper/{group}="
                raise ConfigError(f"{name}._target_", message, remedy=remedy)
            is_grid = name == SAMPLER and _is_a(inner, "GridSampler")
            check_arguments(name, {**({"search_space": {}} if is_grid else {}), **inner})
        with as_config_error(key, node):
            make_sampler(node, space, 0) if kind is BaseSampler else make_part(node)


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
            "hydra.sweeper.objectives": to_builtins(self.objectives),
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

    def __init__(self, folder: Path, search: Search) -> None:
        self.folder, self.search = folder, search
        self.size = grid_size(search.sampler, search.space)
        drop_torn_line(folder)
        self._study = optuna.create_study(
            study_name=folder.name,
            storage=open_storage(folder),
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
        trial = self._study.ask() if begun is None else optuna.Trial(self._study, begun._trial_id)  # pyrefly: ignore[protected-access]  # as its storage numbers it
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

    def job_of(self, trial: PendingTrial, job: Job) -> Job:
        """Return the job of a trial, with what reports to the study; Optuna prunes by one objective only."""
        first, *more = self.search.objectives
        folder, study = str(self.folder.resolve()), self._study.study_name
        pruner = Pruner(trial.number, study, folder, first.metric, dict(self.search.pruner))
        listener = None if more else (f"{Pruner.__module__}.{Pruner.__name__}", to_builtins(pruner))
        return replace(job, trial=Trial(trial.number, [first, *more]), listener=listener)

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
        if old is None or old == new:
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
