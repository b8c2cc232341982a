"""The grid sweeper, default of `--multirun`: it checks every job before the first one starts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from hydrant.config.check import built
from hydrant.config.command_line import check_grid
from hydrant.config.compose import JobComposer, grid
from hydrant.config.error_messages import explained
from hydrant.config.flat import JobFolders, register_resolvers
from hydrant.config.groups import check_grid_file, check_placed, group_options
from hydrant.errors import ConfigError, HydrantError, JobFailed
from hydrant.files.plain_values import Positive, PositiveInt
from hydrant.files.redaction import redacted
from hydrant.runs.folder import RunFolder, RunStatus, runs_of_sweep
from hydrant.runs.job import Job, hydra_settings, job_of, place
from hydrant.runs.lock import is_in_use, shared
from hydrant.sweeps import plan, preflight
from hydrant.sweeps.executors.base import SweepJob, executor_of
from hydrant.sweeps.fork_server.call import start_server
from hydrant.sweeps.sweep import RunningSweep
from hydrant.terminal.console import relative, say, show_activity


@dataclass(frozen=True)
class Context:
    """What a sweeper works with."""

    config: DictConfig  # of the sweep, with the node `hydra`
    composer: JobComposer
    sweep: RunningSweep


_KEY = "hydra.sweeper"


_Fault = tuple[ConfigError, Sequence[str]]
"""Why a job cannot run, and the words of the job."""


class GridSweeper:
    """Runs a job for every combination of values.

    If one of the jobs cannot run, none starts. If a job fails later, the others still run.

    Args:
        context: the sweep that begins.
        max_batch_size: jobs that the launcher gets at once; null: all.
        max_runs: runs that may begin in the folder of the sweep, over all starts; null: all.
        max_seconds: of this start; then the jobs save and stop, and no other starts; null: no limit.
        params: overrides to add, by key.
    """

    def __init__(
        self,
        context: Context,
        *,
        max_batch_size: PositiveInt | None = None,
        params: Mapping[str, Any] | None = None,
        max_runs: PositiveInt | None = None,
        max_seconds: Positive | None = None,
    ) -> None:
        self._max_runs, context.sweep.rules.max_seconds = max_runs, max_seconds
        self.config, self.sweep, self._composer = context.config, context.sweep, context.composer
        with hydra_settings(context.config.hydra):
            self.executor = executor_of(_resolved(context.config.hydra.launcher, "hydra.launcher"))
        context.sweep.files.queues = self.executor.queues
        self.folder = context.sweep.folder
        self._max_batch_size, self._params = max_batch_size, params or {}
        self._needs_server = False  # to be started while jobs are composed

    def run(self) -> None:
        """Check and run the jobs.

        Raises:
            ConfigError: a job cannot run, so none has started.
            JobFailed: a job failed.
            Stopped: a signal arrived.
        """
        overrides = self._overrides()
        check_grid(overrides)
        swept = [o.get_key_element().lstrip("+~") for o in overrides if o.is_sweep_override()]
        recorded = plan.recorded_jobs(self.folder)
        register_resolvers(JobFolders(swept, recorded))
        job_words = grid(overrides)
        jobs, faults = self._compose_all(job_words)
        unfinished = [job for job in jobs if not preflight.is_finished(job.config, RunFolder(job.folder))]
        faults = faults or self._find_faults(unfinished)
        if faults:
            error, words = faults[0]
            counts = f"{len(faults):,} of {len(job_words):,} jobs cannot run, so none starts"
            raise error.at(error.key, f"; {counts} (the first: {' '.join(redacted(words))})")
        self.sweep.files.keeps_plan = is_in_use(self.folder)
        self.sweep.files.adds_seeds = plan.adds_seeds(self.folder, recorded, [j.job.overrides for j in jobs])
        finished = {job.folder: job not in unfinished for job in jobs}
        say(preflight.describe_start(self.folder, finished, keeps_plan=self.sweep.files.keeps_plan))
        self._launch(jobs)

    def _overrides(self) -> list[Override]:
        """Return the sweeper's own parameters, then the overrides of the command line without `sweep=lr`.

        The parameters of that are among its own. So the jobs equal those of a command with these and no `sweep=`.
        """
        check_placed(self.config)
        check_grid_file(self.config.hydra.runtime.choices.get("sweep"))
        params = [f"{key}={value}" for key, value in self._params.items()]
        words: Any = OmegaConf.to_container(self.config.hydra.overrides.task)  # with interpolations
        overrides = self._composer.parse([*params, *words])
        check_grid(override for override in overrides if override.key_or_group == "sweep")
        return [override for override in overrides if override.key_or_group != "sweep"]

    def _find_faults(self, jobs: Sequence[SweepJob]) -> list[_Fault]:
        """Return why jobs cannot run on this machine; nothing if a launcher runs them on others."""
        if not jobs or self.executor.is_remote:
            return []
        reasons = [(preflight.trained_elsewhere(job.folder), job.words) for job in jobs]
        if elsewhere := [(ConfigError("name", reason), words) for reason, words in reasons if reason]:
            return elsewhere
        errors = self.executor.find_errors(jobs)
        return [(error, job.words) for job, error in zip(jobs, errors, strict=True) if error]

    def _launch(self, jobs: Sequence[SweepJob]) -> None:
        size = self._max_batch_size or len(jobs)
        overrides = {job.folder: job.job.overrides for job in jobs}
        with shared(self.folder), self.sweep.active(overrides):
            self.sweep.files.write_config(self.config)
            allowed = self._allowed(jobs)
            failures = [self._run_batch(allowed[n : n + size], n) for n in range(0, len(allowed), size)]
        if failed := list(filter(None, failures)):
            raise JobFailed(failed[0])

    def _allowed(self, jobs: Sequence[SweepJob]) -> Sequence[SweepJob]:
        """Return the jobs that have begun, and as many others as `max_runs` allows."""
        if self._max_runs is None:
            return jobs
        begun = {run.path.resolve() for run in runs_of_sweep(self.folder) if run.has_begun}
        num_left = max(self._max_runs - len(begun), 0)
        new = [job.folder for job in jobs if job.folder not in begun]
        if new[num_left:]:
            self.sweep.answer.ended_by = f"{_KEY}.max_runs={self._max_runs}"
        allowed = begun | set(new[:num_left])
        return [job for job in jobs if job.folder in allowed]

    def _run_batch(self, jobs: Sequence[SweepJob], first: int) -> str:
        """Run jobs, the first of which has this number; return why the first failed one failed, "" if none did."""
        planned = [self.sweep.add(job, number) for number, job in enumerate(jobs, first)]
        results = self.sweep.run_all(planned, self.executor)
        failed = [f"job {n}: {result.message}" for n, result in sorted(results.items()) if result.exit_status]
        return failed[0] if failed else ""

    def _compose_all(self, jobs: Sequence[Sequence[str]]) -> tuple[list[SweepJob], list[_Fault]]:
        """Return the composed jobs, and why others cannot be composed or run in their folder."""
        composed, faults = dict[Path, SweepJob](), list[_Fault]()
        self._needs_server = not self.executor.is_remote and _have_same_options(jobs)
        for index, words in enumerate(jobs):
            if index % 10 == 0 and len(jobs) > 1:
                show_activity(f"composed {index:,} of {len(jobs):,} jobs")
            try:
                job = self._compose(words, index)
                if job.folder in composed:
                    message = f"another job has the same folder, {job.folder.name}"
                    raise ConfigError("", message, remedy="give each value once")
                composed[job.folder] = job
                preflight.check_same_config(job.config, job.folder)
            except HydrantError as error:
                fault = error if isinstance(error, ConfigError) else ConfigError("", str(error))
                faults.append((fault, words))
        return list(composed.values()), faults

    @explained()
    def _compose(self, words: Sequence[str], number: int, subdir: str | None = None) -> SweepJob:
        config = self._composer.compose(words)
        for key in config.hydra.sweeper.get("params") or {}:
            if key not in self._params:
                reason = (
                    f"the values of {key} are set by an option that the sweep varies, such as experiment=a,b"
                )
                remedy = "give each such option a command of its own; with the same name=<folder> they are one sweep"
                raise ConfigError(f"{_KEY}.params", reason, remedy=remedy)
        if subdir is not None:
            config.hydra.sweep.subdir = subdir
        environment = dict(config.hydra.job.env_set)
        placed = place(config, number)
        if self._needs_server and RunFolder(placed.folder).state != RunStatus.FINISHED:
            self._needs_server = False  # it imports while this process imports and composes
            start_server(self.executor.unit.paths_to_preload([cast("Any", OmegaConf.to_container(config))]))
        job = job_of(config, placed)
        _check_folder(job, self.folder)
        return SweepJob(job, words, environment)


def _check_folder(job: Job, of_sweep: Path) -> None:
    """Raise ConfigError if the folder of a job is not inside that of the sweep."""
    assert job.sweep_folder is not None
    folder, sweep = job.folder.resolve(), of_sweep.resolve()
    is_of_sweep = job.sweep_folder.resolve() == sweep
    if not is_of_sweep or sweep.is_relative_to(folder):
        key = "name" if job.config["name"] is not None else "hydra.sweep.dir"
        where = f"gives a job the folder {relative(folder)}, and the sweep has {relative(sweep)}"
        remedy = "all jobs of a sweep are in its folder, where each has its own: give one text without ${...}"
        raise ConfigError("hydra.sweep.subdir" if is_of_sweep else key, where, remedy=remedy)


def _have_same_options(jobs: Sequence[Sequence[str]]) -> bool:
    """Return whether jobs differ in values only, so that they need the same modules."""
    groups = group_options() if len(jobs) > 1 else {}
    options = {
        tuple(word for word in words if re.split("[@=]", word.lstrip("+~"))[0] in groups) for words in jobs
    }
    return len(options) == 1


def sweeper_of(context: Context) -> GridSweeper:
    """Return the sweeper that the config of a sweep chooses: `hydra/sweeper=grid`.

    Raises:
        ConfigError: it takes other arguments.
    """
    with hydra_settings(context.config.hydra):
        node = _resolved(context.config.hydra.sweeper, _KEY)
    return built({"context": context, **node}, _KEY, "sweeper", GridSweeper)


def _resolved(node: DictConfig | None, key: str) -> dict[str, Any]:
    """Return a node that names a class, in plain types."""
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise ConfigError(key.replace(".", "/", 1), "needs an option, see --help")
    return cast("dict[str, Any]", OmegaConf.to_container(node, resolve=True, throw_on_missing=True))
