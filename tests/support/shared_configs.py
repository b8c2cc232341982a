"""Let the tests of a process share what Hydra makes of Hydrant's config files: composing is half of a short run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hydra.types import RunMode
from omegaconf import DictConfig

from hydrant.config.command_line import with_limits
from hydrant.config.compose import ENTRY, Composer, JobComposer
from hydrant.config.groups import conf_dir
from hydrant.config.hydra_guard import check_hydra_node

_HYDRANTS = {"pkg://hydra.conf", with_limits(str(conf_dir())), "structured://"}
"""The search path without a user's folder."""

_jobs: list[JobComposer] = []
"""One, once it is made, which keeps what it has composed."""


class SharingComposer(Composer):
    """Composes a config as a job of one sweep with the others that are of Hydrant's files alone.

    tests/config/test_job_composer.py compares such configs with those that Hydra composes.
    """

    def compose(
        self, overrides: Iterable[str], mode: RunMode = RunMode.RUN, *, sends_results: bool = True
    ) -> DictConfig:
        words = list(overrides)
        folders = {element.path for element in self.loader.get_search_path().get_path()}
        is_run = mode == RunMode.RUN and self.name == ENTRY
        if is_run and folders == _HYDRANTS and not any("hydra" in word for word in words):
            try:
                return self._compose_shared(words)
            except Exception:  # what is wrong is said below
                pass
        return super().compose(words, mode, sends_results=sends_results)

    def _compose_shared(self, words: list[str]) -> DictConfig:
        if not _jobs:
            _jobs.append(JobComposer(self, super().compose([])))
        _jobs[0]._composer = self
        config = _jobs[0].compose(words)
        config.hydra.runtime.cwd = str(Path.cwd())
        check_hydra_node(config, self.words)  # by the words of this command
        return config
