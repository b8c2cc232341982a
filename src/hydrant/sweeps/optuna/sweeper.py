"""The Optuna sweeper: a search whose trials are the jobs of a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from hydrant.config.job_folders import shortened
from hydrant.config.metric_keys import check_logged, defines, unknown_mode
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveInt, check_value
from hydrant.files.redaction import redacted
from hydrant.imports.distribution import require_extra
from hydrant.runs.folder import runs_of_sweep
from hydrant.runs.lock import exclusive
from hydrant.sweeps.executors import SweepJob
from hydrant.sweeps.executors.local import Sequential
from hydrant.sweeps.grid import Context, GridSweeper
from hydrant.sweeps.optuna.objectives import Objective
from hydrant.sweeps.preflight import find_config_errors, trained_elsewhere
from hydrant.terminal.console import notice

if TYPE_CHECKING:
    from hydrant.sweeps.optuna.space import Space

_KEY = "hydra.sweeper"


class OptunaSweeper(GridSweeper):
    """Searches for the best values with Optuna. The same command continues the search.

    conf/hydra/sweeper/optuna.yaml describes the arguments.
    """

    def __init__(
        self, context: Context, *, params: Any, sampler: Any, pruner: Any, objectives: Any, storage: str,
        n_trials: PositiveInt, n_jobs: PositiveInt | None, max_failures: NotNegativeInt,
        max_seconds: Positive | None = None,
    ) -> None:  # fmt: skip
        super().__init__(context, params=params, max_seconds=max_seconds)
        self._sampler, self._pruner, self._objectives, self._storage = sampler, pruner, objectives, storage
        self._limits = {"n_trials": n_trials, "n_jobs": n_jobs, "max_failures": max_failures}

    def run(self) -> None:
        require_extra("optuna", ["optuna"], "hydra/sweeper", "optuna")
        from hydrant.sweeps.optuna import trials as optuna_trials
        from hydrant.sweeps.optuna.search import Limits, SearchLoop
        from hydrant.sweeps.optuna.space import read_space

        limits = Limits(**self._check_limits())
        space = read_space(self._overrides())
        optuna_trials.check_parts(self._sampler, self._pruner, space)
        self._check_objectives()
        config = self._check_values(space)
        fields = [config["best"]] if self._objectives is None else self._objectives
        if fields[0]["mode"] == "auto":
            raise unknown_mode("best.mode", fields[0]["metric"])
        objectives = [Objective(**objective) for objective in fields]
        for metric in [objective.metric for objective in objectives]:
            check_logged(metric, config)
            if keys := [key for key in space.distributions if defines(key.lstrip("+"), metric)]:
                meaning = f"{metric} is another quantity with each {', '.join(keys)}"
                notice(
                    f"warning: {meaning}, so the search does not find the best one; give another best.metric"
                )
        folder = self.folder
        with exclusive(folder):
            self._check_not_trained_elsewhere(folder)
            trials = optuna_trials.Trials(
                folder, self._storage, optuna_trials.Search(space, objectives, self._sampler, self._pruner)
            )

            def compose_job(trial: optuna_trials.PendingTrial) -> SweepJob:
                sweep_job = self._compose_job(trial.number, space.overrides(trial.params), trial.params)
                return replace(sweep_job, job=replace(sweep_job.job, trial=trials.for_job(trial)))

            SearchLoop(trials, limits, self.sweep, compose_job).run(self.executor, self.lanes, self.config)

    def _check_not_trained_elsewhere(self, folder: Path) -> None:
        """Raise ConfigError if another machine trains a trial."""
        for run in [] if self.executor.is_remote else runs_of_sweep(folder):
            if reason := trained_elsewhere(run.path):
                raise ConfigError("name", reason)

    def _check_limits(self) -> dict[str, int]:
        """Return `n_trials`, `n_jobs` and `max_failures`; raise ConfigError if `n_jobs` is not possible."""
        limits: dict[str, Any] = dict(self._limits)
        if limits["n_jobs"] is None:
            if self.lanes == "auto":
                message = (
                    "needs a number with hydra.launcher.lanes=auto: only trials drawn at once can be stacked"
                )
                raise ConfigError(f"{_KEY}.n_jobs", message)
            limits["n_jobs"] = (OmegaConf.select(self.config, "hydra.launcher.num_jobs") or 1) * self.lanes
        if limits["n_jobs"] > 1 and isinstance(self.executor, Sequential):
            message = "the basic launcher runs one trial after another"
            raise ConfigError(f"{_KEY}.n_jobs", message, remedy="add hydra/launcher=local, or another one")
        return limits

    def _check_objectives(self) -> None:
        """Raise ConfigError if `objectives` is no list of metrics and modes, or the pruner allows only one."""
        key, objectives = f"{_KEY}.objectives", self._objectives
        if objectives is None:
            return
        check_value(key, list[dict[str, str]], objectives)
        for objective in objectives:
            for name in {"metric", "mode"} ^ objective.keys():
                problem = "is unknown" if name in objective else "is missing"
                raise ConfigError(
                    key, f"{name} {problem}", remedy="write [{metric: val/accuracy, mode: max}]"
                )
            if objective["mode"] not in ("max", "min"):
                raise ConfigError(key, f"mode needs max or min, not {objective['mode']}")
        if not objectives:
            raise ConfigError(key, needs="one or more, or null for best.metric")
        if len(objectives) > 1 and not str(self._pruner["_target_"]).endswith(".NopPruner"):
            message = "no pruner decides between several objectives"
            raise ConfigError("hydra/sweeper/pruner", message, remedy="give hydra/sweeper/pruner=none")

    def _check_values(self, space: Space) -> Mapping[str, Any]:
        """Check each value of the space once, with the first values of all other keys; return the first config.

        Raises:
            ConfigError: a value cannot be composed, or no job can run on this machine.
        """
        first = {key: space.values(key)[0] for key in space.distributions}
        varied = [{**first, key: value} for key in space.distributions for value in space.values(key)[1:]]
        words = [space.overrides(params) for params in (first, *varied)]
        jobs = [self._compose(job_words, number) for number, job_words in enumerate(words)]
        errors = [] if self.executor.is_remote else find_config_errors([job.config for job in jobs])
        if errors and errors[0] and all(errors):
            message = f"{errors[0].reason} [job: {' '.join(redacted(words[0]))}]"
            raise ConfigError(errors[0].key, message, remedy=errors[0].remedy)
        return jobs[0].config

    def _compose_job(self, number: int, overrides: Sequence[str], params: Mapping[str, Any]) -> SweepJob:
        """Return the job of a trial, with a folder named after its number and parameters.

        Raises:
            ConfigError: its values do not fit together.
        """
        labels = redacted([f"{key.lstrip('+')}={_short(value)}" for key, value in sorted(params.items())])
        slug = re.sub(r"[^\w.%+-]", "-", "_".join([f"{number:04d}", *labels]))
        job = self._compose(overrides, number, shortened(slug, 120))
        return self.sweep.add(job, number)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
