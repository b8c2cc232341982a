"""Found by Hydra: the grid of `--multirun`, every job of which is checked before the first one starts."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf, open_dict

from hydra_plugins.hydrant_launchers import ExecutorLauncher
from hydrant.admission import is_finished, refusals, refuse_another, told_of_start, trained_elsewhere
from hydrant.config import check, record_of, register
from hydrant.config.arguments import check_overrides, check_sweep
from hydrant.config.messages import HYDRA_ERRORS, explain
from hydrant.errors import ConfigError
from hydrant.executors import Executor
from hydrant.executors.local import InTurn
from hydrant.job import say
from hydrant.locking import shared
from hydrant.sweep import current
from hydrant.trackers.record import replace_file


@dataclass
class GridConfig:
    _target_: str = "hydra_plugins.hydrant_sweeper.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=GridConfig, provider="hydrant")


@dataclass(frozen=True)
class _Checked:
    """A job that can be composed."""

    words: Sequence[str]
    config: dict[str, Any]
    folder: Path
    overrides: Sequence[str]  # of the task: the words without those for Hydra


_Fault = tuple[str, str, Sequence[str]]
"""(key, reason, the words of the job)."""


class GridSweeper(BasicSweeper):
    """Hydra's own grid, which stops before it starts if any of its jobs cannot run, and not when one fails.

    `max_batch_size` is how many jobs the launcher is given at once; null: all.
    """

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        overrides = self._parsed(arguments)
        for override in overrides:
            check_sweep(override)
        # A grid was chosen for its parameters, which stand before the others: its jobs are those of the long command.
        overrides = [override for override in overrides if override.key_or_group != "sweep"]
        register([o.get_key_element().lstrip("+~") for o in overrides if o.is_sweep_override()])
        jobs = self.split_arguments(overrides, None)[0]
        checked, faults = self._check(jobs)
        rest = [job for job in checked if not is_finished(job.config, job.folder)]
        faults = faults or self._unable(rest)
        if faults:
            key, reason, words = faults[0]
            raise ConfigError(
                key, f"{reason} [job: {' '.join(words)}; {len(faults)} of {len(jobs)} cannot run]"
            )
        folder = Path(self.config.hydra.sweep.dir)
        say(told_of_start(folder, {job.folder: job not in rest for job in checked}))
        return self._launch(folder, checked)

    def _parsed(self, arguments: Sequence[str]) -> list[Override]:
        """The overrides of the command, after the parameters of the sweeper."""
        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        return parser.parse_overrides([*self._parse_config(), *arguments])

    def _unable(self, jobs: Sequence[_Checked]) -> list[_Fault]:
        """Why jobs that are not finished cannot run here; of a launcher to other machines nothing is known."""
        if not jobs or self._executor.is_elsewhere:
            return []
        if moving := [("name", why, job.words) for job in jobs if (why := trained_elsewhere(job.folder))]:
            return moving
        found = zip(jobs, refusals([job.config for job in jobs]), strict=True)
        return [(key, reason, job.words) for job, (key, reason) in found if reason]

    @property
    def _executor(self) -> Executor:
        return self.launcher.executor if isinstance(self.launcher, ExecutorLauncher) else InTurn()

    def _launch(self, folder: Path, jobs: Sequence[_Checked]) -> list[Sequence[JobReturn]]:
        assert self.config is not None and self.launcher is not None
        size = self.max_batch_size or len(jobs)
        starts, words = range(0, len(jobs), size), [list(job.words) for job in jobs]
        folder.mkdir(parents=True, exist_ok=True)
        with shared(folder), current.get().going(folder, {job.folder: job.overrides for job in jobs}):
            replace_file(folder / "multirun.yaml", record_of(self.config))
            batches = [self.launcher.launch(words[n : n + size], initial_job_idx=n) for n in starts]
        failed = [job for batch in batches for job in batch if job.status is not JobStatus.COMPLETED]
        if failed:
            # Its `return_value` would write a line of its own to stderr.
            raise failed[0]._return_value  # pyright: ignore[reportPrivateUsage]
        return batches

    def _check(self, jobs: Sequence[Sequence[str]]) -> tuple[list[_Checked], list[_Fault]]:
        """The jobs with their configs; and what is wrong with those that cannot be had, or lie elsewhere."""
        checked, faults = dict[Path, _Checked](), list[_Fault]()
        for number, words in enumerate(jobs):
            try:
                job = self._composed(words, number)
                if job.folder in checked:
                    raise ConfigError("", f"another job has the same folder, {job.folder.name}; each once")
                checked[job.folder] = job
                refuse_another(job.config, job.folder)
            except ConfigError as error:
                faults.append((error.key, error.reason, words))
            except HYDRA_ERRORS as error:
                told = explain(error)
                key, reason = (told.key, told.reason) if isinstance(told, ConfigError) else ("", str(told))
                faults.append((key, reason, words))
        return list(checked.values()), faults

    def _composed(self, words: Sequence[str], number: int) -> _Checked:
        assert self.hydra_context is not None and self.config is not None
        check_overrides(words)
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(words))
        with _as_job(config, number):
            plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
            folder = Path(config.hydra.sweep.dir, config.hydra.sweep.subdir).resolve()
            return _Checked(words, check(plain), folder, list(config.hydra.overrides.task))


@contextmanager
def _as_job(config: DictConfig, number: int) -> Generator[None]:
    """What `${hydra:...}` gives while a job of this config runs."""
    hydra_config = HydraConfig.instance()
    before = hydra_config.cfg
    with open_dict(config):
        config.hydra.job.id = config.hydra.job.num = number
    hydra_config.set_config(config)
    try:
        yield
    finally:
        hydra_config.cfg = before
