"""Found by Hydra: `hydra/sweeper=optuna`, a search whose trials are the jobs of a sweep."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from omegaconf import OmegaConf

from hydra_plugins.hydrant_sweeper import GridSweeper
from hydrant.admission import refusals, trained_elsewhere
from hydrant.config import record_of
from hydrant.config.hints import check_value
from hydrant.config.messages import HYDRA_ERRORS, explain
from hydrant.errors import ConfigError
from hydrant.executors import Work
from hydrant.executors.base import need
from hydrant.executors.local import InTurn
from hydrant.locking import exclusive
from hydrant.objectives import Objective
from hydrant.redaction import redacted
from hydrant.runs import runs_of_sweep
from hydrant.sweep import current
from hydrant.trackers.record import replace_file

_KEY = "hydra.sweeper"
_LEAST = {"n_trials": 1, "n_jobs": 1, "max_failures": 0}


class OptunaSweeper(GridSweeper):
    """A search for the best values, which goes on where it was when it is started again.

    conf/hydra/sweeper/optuna.yaml tells the arguments.
    """

    def __init__(
        self, params: Any, sampler: Any, pruner: Any, objectives: Any, storage: str, **limits: Any
    ) -> None:
        super().__init__(max_batch_size=None, params=params)
        self._sampler, self._pruner = _plain(sampler), _plain(pruner)
        self._objectives, self._storage, self._limits = _plain(objectives), storage, limits

    def sweep(self, arguments: list[str]) -> None:
        need("optuna", "optuna")
        from hydrant.study.parts import check_parts  # these bring in Optuna
        from hydrant.study.search import Limits, Loop
        from hydrant.study.space import read_space
        from hydrant.study.trials import Search, Trials

        assert self.hydra_context is not None and self.config is not None
        limits = Limits(**self._checked_limits())
        space = read_space(self._parsed(arguments))
        check_parts(self._sampler, self._pruner, space)
        self._check_objectives()
        probes = [{key: space.values(key)[0] for key in space.distributions}]
        probes += [
            {**probes[0], key: value} for key in space.distributions for value in space.values(key)[1:]
        ]
        config = self._check_probes([space.overrides(probe) for probe in probes])
        given = [config["best"]] if self._objectives is None else self._objectives
        objectives = [Objective(**objective) for objective in given]
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder):
            self._refuse_moving(folder)
            trials = Trials(folder, self._storage, Search(space, objectives, self._sampler, self._pruner))
            replace_file(folder / "multirun.yaml", record_of(self.config))

            def work_of(asked: Any) -> Work:
                work = self._work(asked.number, space.overrides(asked.params), asked.params)
                return replace(work, job=replace(work.job, trial=trials.told_of(asked)))

            Loop(trials, space, objectives, limits, current.get(), work_of).run(self._executor)

    def _refuse_moving(self, folder: Path) -> None:
        """Raises ConfigError where another machine goes on with a trial."""
        if self._executor.is_elsewhere:
            return
        for run in runs_of_sweep(folder):
            if why := trained_elsewhere(run.path):
                raise ConfigError("name", why)

    def _checked_limits(self) -> dict[str, int]:
        """Raises ConfigError where a number is none."""
        assert self.config is not None
        limits = dict(self._limits)
        num_jobs = OmegaConf.select(self.config, "hydra.launcher.num_jobs")
        if limits["n_jobs"] is None:
            limits["n_jobs"] = num_jobs or 1
        for name, least in _LEAST.items():
            check_value(f"{_KEY}.{name}", int, limits[name])
            if limits[name] < least:
                raise ConfigError(f"{_KEY}.{name}", f"needs {least} or more, not {limits[name]}")
        if limits["n_jobs"] > 1 and isinstance(self._executor, InTurn):
            told = "the basic launcher runs one trial after another; add hydra/launcher=local, or another one"
            raise ConfigError(f"{_KEY}.n_jobs", told)
        return limits

    def _check_objectives(self) -> None:
        """Raises ConfigError where they are none."""
        key, given = f"{_KEY}.objectives", self._objectives
        if given is None:
            return
        check_value(key, list[dict[str, str]], given)
        for objective in given:
            for name in {"metric", "mode"} ^ objective.keys():
                told = "is no part of it" if name in objective else "is missing"
                raise ConfigError(key, f"{name} {told}; write [{{metric: val/accuracy, mode: max}}]")
            if objective["mode"] not in ("max", "min"):
                raise ConfigError(key, f"max or min, not {objective['mode']}")
        if not given:
            raise ConfigError(key, "needs one or more, or null for best.metric")
        if len(given) > 1 and not str(self._pruner["_target_"]).endswith(".NopPruner"):
            told = "no pruner decides between several objectives; take hydra/sweeper/pruner=none"
            raise ConfigError("hydra/sweeper/pruner", told)

    def _check_probes(self, jobs: Sequence[Sequence[str]]) -> Mapping[str, Any]:
        """Compose a job with each value, and see that any of them can run here; the config of the first one.

        Raises:
            ConfigError: a value is none, or no job can run.
        """
        composed = [self._composed(words, number) for number, words in enumerate(jobs)]
        faults = [] if self._executor.is_elsewhere else refusals([job.config for job in composed])
        if faults and all(reason for _, reason in faults):
            key, reason = faults[0]
            raise ConfigError(key, f"{reason} [job: {' '.join(jobs[0])}]")
        return composed[0].config

    def _work(self, number: int, overrides: Sequence[str], params: Mapping[str, Any]) -> Work:
        """The job of a trial, in a folder of its own."""
        assert isinstance(self.launcher, BasicLauncher)
        own = redacted([f"{key.lstrip('+')}={_short(value)}" for key, value in sorted(params.items())])
        slug = re.sub(r"[^\w.%+-]", "-", "_".join([f"{number:04d}", *own]))[:120]
        words = [*overrides, f"hydra.sweep.subdir='{slug}'"]
        try:
            with current.get().gathering() as works:
                (returned,) = BasicLauncher.launch(self.launcher, [words], initial_job_idx=number)
            if not works:
                raise returned._return_value  # pyright: ignore[reportPrivateUsage]
        except HYDRA_ERRORS as error:  # of values that do not go together
            raise ConfigError("", str(explain(error))) from error
        return works[0]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
