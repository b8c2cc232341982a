"""Let the tests of a process share what Hydra makes of Hydrant's config files: composing is a third of a short run."""

import pickle
import re
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra._internal import config_repository, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hydrant.config.command_line import with_limits
from hydrant.config.compose import ENTRY, Composer, JobComposer
from hydrant.config.groups import conf_dir
from hydrant.config.hydra_guard import check_hydra_node

_HYDRANTS = {"pkg://hydra.conf", with_limits(str(conf_dir())), "structured://"}
"""The search path without a user's folder."""

_jobs: list[JobComposer] = []
"""One, once it is made, which keeps what it has composed."""

_files, _merged = dict[str, Any](), dict[str, bytes]()


def _read_once(repository: ConfigRepository, config_path: str) -> Any:
    if config_path not in _files:
        _files[config_path] = _READ(repository, config_path)
    return _files[config_path]


def _merge_once(loader: ConfigLoaderImpl, defaults: Sequence[Any], repo: Any) -> DictConfig:
    """Merge the files of a defaults list, or take them from an earlier config of the same files."""
    if (key := f"{defaults}") not in _merged:
        repo.cache = deepcopy(repo.cache)  # merging changes what was read
        _merged[key] = pickle.dumps(_MERGE(loader, defaults, repo))
    return pickle.loads(_merged[key])


_READ, _MERGE = ConfigRepository.load_config, ConfigLoaderImpl._compose_config_from_defaults_list


class SharingComposer(Composer):
    """Composes a config as a job of one sweep with the others that are of Hydrant's files alone, each read once.

    tests/config/test_job_composer.py compares such configs with those that Hydra composes.
    """

    def load(self, overrides: Iterable[str], mode: RunMode) -> DictConfig:
        words = list(overrides)
        # What is read of an experiment depends on the options that replace its own.
        if not self._has_hydrants_files() or re.search("experiment|searchpath", f"{words}"):
            return super().load(words, mode)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ConfigRepository, "load_config", _read_once)
            patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", _merge_once)
            # It would copy what it reads from, to change the sources.
            patch.setattr(config_repository, "copy", SimpleNamespace(deepcopy=lambda sources: sources))
            # Hydra 1.3 makes it for each entry of each defaults list, for interpolations there: we have none.
            patch.setattr(
                defaults_list, "_create_interpolation_map", lambda *_: OmegaConf.create(), raising=False
            )
            return super().load(words, mode)

    def _has_hydrants_files(self) -> bool:
        return {element.path for element in self.loader.get_search_path().get_path()} == _HYDRANTS

    def compose(self, overrides: Iterable[str], mode: RunMode = RunMode.RUN, **options: bool) -> DictConfig:
        words = list(overrides)
        is_run = mode == RunMode.RUN and self.name == ENTRY
        if is_run and self._has_hydrants_files() and not any("hydra" in word for word in words):
            try:
                return self._compose_shared(words)
            except Exception:  # what is wrong is said below
                pass
        return super().compose(words, mode, **options)

    def _compose_shared(self, words: list[str]) -> DictConfig:
        if not _jobs:
            _jobs.append(JobComposer(self, super().compose([])))
        _jobs[0]._composer = self
        config = _jobs[0].compose(words)
        config.hydra.runtime.cwd = str(Path.cwd())
        check_hydra_node(config, self.words)  # by the words of this command
        return config
