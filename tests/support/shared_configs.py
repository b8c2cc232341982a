"""Let the tests of a process share what Hydra makes of Hydrant's config files: composing is a third of a short run."""

import hashlib
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import version
from hydra._internal import config_repository, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from repository import ROOT

from hydrant.config.check import check_hydra_node
from hydrant.config.command_line import with_limits
from hydrant.config.compose import ENTRY, Composer, JobComposer
from hydrant.config.groups import conf_dir

_HYDRANTS = {"pkg://hydra.conf", with_limits(str(conf_dir())), "structured://"}
"""The search path without a user's folder."""
_EXAMPLES = with_limits(f"{ROOT}/examples/")
"""Begins the paths of users' folders that no test changes."""

_jobs = dict[frozenset[str], JobComposer]()
"""By the search path: each keeps what it has composed."""

FOLDER = "_TESTS_CONFIGS"
"""The variable with the folder where all processes of this run of the tests find what each has composed."""

_read, _merged = dict[str, Any](), dict[str, bytes]()


def _is_hydrants(repository: Any, config_path: str) -> bool:
    """Whether a file is the same in each test. What is read of an experiment depends on the options that replace its
    own.
    """
    source = repository._find_object_source(config_path, ObjectType.CONFIG)
    return source is not None and source.full_path() in _HYDRANTS and not config_path.startswith("experiment")


def _read_once(repository: ConfigRepository, config_path: str) -> Any:
    if not _is_hydrants(repository, config_path):
        return _READ(repository, config_path)
    if config_path not in _read:
        _read[config_path] = _READ(repository, config_path)
    return _read[config_path]


def _merge_once(loader: ConfigLoaderImpl, defaults: Sequence[Any], repo: Any) -> DictConfig:
    """Merge the files of a defaults list. Those before the first of a user are merged once."""
    num_before = sum(1 for _ in takewhile(lambda d: _is_hydrants(repo.delegate, d.config_path), defaults))
    merged = _merged_before(loader, defaults[:num_before], repo)
    try:
        _merge_each(merged, loader, defaults[num_before:], repo)
    except OmegaConfBaseException:
        return _MERGE(loader, defaults, repo)  # which names the file
    return merged


def _merged_before(loader: ConfigLoaderImpl, defaults: Sequence[Any], repo: Any) -> DictConfig:
    """Return Hydrant's files merged. Lists that begin alike share it."""
    if (key := f"{defaults}") not in _merged:
        num_kept = max(len(defaults) - 1, 0) // _STEP * _STEP
        merged = _merged_before(loader, defaults[:num_kept], repo) if num_kept else OmegaConf.create()
        _merge_each(merged, loader, defaults[num_kept:], repo)
        _merged[key] = pickle.dumps(merged)
    return pickle.loads(_merged[key])


def _merge_each(merged: DictConfig, loader: ConfigLoaderImpl, defaults: Sequence[Any], repo: Any) -> None:
    for default in defaults:
        read = f"config_path={default.config_path}"
        repo.cache[read] = deepcopy(repo.cache[read])  # merging changes what was read
        merged.merge_with(_MERGE(loader, [default], repo))


_READ, _MERGE = ConfigRepository.load_config, ConfigLoaderImpl._compose_config_from_defaults_list
_STEP = 6
"""The number of files after which what is merged so far is kept."""
_FIND, _EMPTY = ConfigRepository._find_object_source, OmegaConf.create()


class _Files(dict[Any, bytes]):
    """What the processes of one run of the tests have composed: each value is also in a file of the folder."""

    def __init__(self, folder: Path, search_path: Iterable[str]) -> None:
        self._folder, self._search_path = folder, sorted(search_path)

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key) and (file := self._file(key)).exists():
            super().__setitem__(key, file.read_bytes())
        return super().__contains__(key)

    def __setitem__(self, key: object, value: bytes) -> None:
        super().__setitem__(key, value)
        beside = self._file(key).with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # such as in a process that may write no files
            beside.write_bytes(value)
            beside.replace(self._file(key))

    def _file(self, key: object) -> Path:
        return self._folder / hashlib.sha1(f"{self._search_path}{key}".encode()).hexdigest()


@contextmanager
def quick_hydra() -> Iterator[None]:
    """Let Hydra read and merge each of Hydrant's files once for all tests, and look for each file once in here."""
    found = dict[Any, Any]()

    def find_once(repository: ConfigRepository, config_path: str, object_type: ObjectType) -> Any:
        key = (id(repository.sources), config_path, object_type)
        if key not in found:
            found[key] = repository.sources, _FIND(repository, config_path, object_type)
        return found[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "_find_object_source", find_once)
        # Hydra 1.3 asks it for each entry; 1.4 lacks it.
        patch.setattr(version, "base_at_least", cache(getattr(version, "base_at_least", bool)), raising=False)
        patch.setattr(ConfigRepository, "load_config", _read_once)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", _merge_once)
        # It would copy what it reads from, to change the sources.
        patch.setattr(config_repository, "copy", SimpleNamespace(deepcopy=lambda sources: sources))
        # Hydra 1.3 makes it for each entry of each defaults list, for interpolations there: we have none.
        patch.setattr(defaults_list, "_create_interpolation_map", lambda *_: _EMPTY, raising=False)
        yield


class QuickComposer(Composer):
    """tests/config/test_job_composer.py compares its configs with those that Hydra composes."""

    def load(self, overrides: Iterable[str], mode: RunMode) -> DictConfig:
        words = list(overrides)
        with nullcontext() if "searchpath" in f"{words}" else quick_hydra():
            return super().load(words, mode)


class SharingComposer(QuickComposer):
    """Composes a config as a job of one sweep with the others that are of the same files, which no test changes."""

    def load(self, overrides: Iterable[str], mode: RunMode) -> DictConfig:
        words = list(overrides)
        path, key = _lasting_path(self.loader), (f"{mode}", self.name, *words)
        if path is None or re.search("experiment|searchpath", f"{words}"):
            return super().load(words, mode)
        if key not in (files := _files_of(path)):
            files[key] = pickle.dumps(super().load(words, mode))
        return _moved_here(pickle.loads(files[key]))

    def compose(self, overrides: Iterable[str], mode: RunMode = RunMode.RUN, **options: bool) -> DictConfig:
        words, path = list(overrides), _lasting_path(self.loader)
        is_run = mode == RunMode.RUN and self.name == ENTRY
        if is_run and path is not None and not any("hydra" in word for word in words):
            try:
                return self._compose_shared(words, path)
            except Exception:  # what is wrong is said below
                pass
        return super().compose(words, mode, **options)

    def _compose_shared(self, words: list[str], path: frozenset[str]) -> DictConfig:
        if path not in _jobs:
            _jobs[path] = JobComposer(self, super().compose([]))
            _jobs[path]._shared = _files_of(path)
        _jobs[path]._composer = self
        config = _moved_here(_jobs[path].compose(words))
        if config.allow_targets:
            check_hydra_node(config, self.words)  # by the words of this command
        return config


def _lasting_path(loader: ConfigLoader) -> frozenset[str] | None:
    """Return where Hydra searches; None if tests change a folder of it."""
    path = frozenset(element.path for element in loader.get_search_path().get_path())
    return path if all(folder.startswith(_EXAMPLES) for folder in path - _HYDRANTS) else None


_files_of = cache(lambda path: _Files(Path(os.environ[FOLDER]), path))


def _moved_here(config: DictConfig) -> DictConfig:
    config.hydra.runtime.cwd = str(Path.cwd())
    return config


_options = dict[str, list[str]]()


def options_once(loader: ConfigLoaderImpl, *words: Any, **named: Any) -> list[str]:
    """List the options of a group once for all tests: for each answer, Hydra reads the primary config."""
    path, key = _lasting_path(loader), f"{loader.get_search_path()} {words} {named}"
    if key not in _options or path is None:
        _options[key] = OPTIONS(loader, *words, **named)
    return _options[key]


OPTIONS = ConfigLoaderImpl.get_group_options
