"""Compose the jobs of a sweep: those that differ in values only share what Hydra makes of the config files.

tests/config/test_job_composer.py compares the configs with those that Hydra composes for each job anew.
"""

from __future__ import annotations

import pickle
import re
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from hydrant.config.command_line import check_overrides
from hydrant.config.compose import Composer
from hydrant.config.hydra_guard import check_hydra_node, check_receiver

_IN_ANY_CASE = ("hydra", "allow_targets")
"""Keys of which a value decides how the config is checked."""


class JobComposer:
    """Composes the jobs of one sweep, inside of `composing`. Config files that change in between have no effect.

    Args:
        composer: of the command.
        sweep: the config of the sweep.
    """

    def __init__(self, composer: Composer, sweep: DictConfig) -> None:
        self._composer, self._sweep = composer, sweep
        self._common: Any = OmegaConf.to_container(sweep.hydra.overrides.hydra)  # words of all jobs
        self._shared = dict[
            tuple[str, ...], bytes
        ]()  # by the overrides that choose: the config without values
        self._overrides = dict[str, Override]()  # by their words
        self._options = cache(self._read_options)

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        return self._composer.parse(overrides)

    def compose(self, words: Sequence[str]) -> DictConfig:
        """Return the checked config of a job, with the node `hydra`.

        Raises:
            HydrantError, or one of `HYDRA_ERRORS`: It cannot be composed.
        """
        overrides = [self._parsed(word) for word in words]
        values = [override for override in overrides if self._is_value(override)]
        choosing = tuple(str(override.input_line) for override in overrides if override not in values)
        if choosing not in self._shared:
            # A fifth of the size: a sweep may have thousands of choices.
            self._shared[choosing] = zlib.compress(pickle.dumps(self._load(choosing)), 1)
        config: DictConfig = pickle.loads(zlib.decompress(self._shared[choosing]))
        try:
            _apply(config, values)
            _record_overrides(config, overrides)
        except (_UnlikeOthers, OmegaConfBaseException, TypeError):
            config = self._load(words)  # Hydra applies the values, or says what is wrong with them
        check_receiver(config, self._composer.words)
        return config

    def _load(self, words: Iterable[str]) -> DictConfig:
        """Return the config of a job as Hydra composes it. Its sweeper and launcher may differ from the sweep's."""
        config = self._composer.load([*self._common, *words], RunMode.RUN)
        OmegaConf.copy_cache(from_config=self._sweep, to_config=config)
        check_hydra_node(config, self._composer.words)
        config.hydra.mode = self._sweep.hydra.mode  # it may come from a config file that jobs leave out
        return config

    def _parsed(self, word: str) -> Override:
        if word not in self._overrides:
            check_overrides([word])
            self._overrides[word] = self._composer.parse([word])[0]
        return self._overrides[word]

    def _is_value(self, override: Override) -> bool:
        """Return whether an override changes a value, and no choice of config files."""
        key = override.key_or_group
        if override.package is not None or override.is_sweep_override():
            return False  # Hydra says what is wrong
        if re.split(r"[./]", key)[0] in _IN_ANY_CASE:
            return False
        return isinstance(override.value(), dict) or not self._is_group(key)

    def _is_group(self, key: str) -> bool:
        # Hydra reads the primary config for each answer, and the first segment of most keys is no folder.
        return key.split("/")[0] in self._options("", ObjectType.GROUP) and bool(self._options(key, None))

    def _read_options(self, folder: str, kind: ObjectType | None) -> list[str]:
        """Return what a folder of the search path has."""
        return self._composer.loader.get_group_options(folder, kind, self._composer.name, self._common)


class _UnlikeOthers(Exception):
    """The config cannot be made from one that others share."""


def _apply(config: DictConfig, overrides: Iterable[Override]) -> None:
    """Change a config as Hydra does.

    Raises:
        _UnlikeOthers: an override is of a kind that is rare, or Hydra refuses it.
    """
    for override in overrides:
        key, value = override.key_or_group, override.value()
        present = OmegaConf.select(config, key, throw_on_missing=False)
        if override.type == OverrideType.CHANGE:
            OmegaConf.update(config, key, value, merge=True)
        elif override.type == OverrideType.FORCE_ADD or (
            override.type == OverrideType.ADD and (present is None or isinstance(value, dict | list))
        ):
            OmegaConf.update(config, key, value, merge=True, force_add=True)
        elif override.type == OverrideType.DEL and value is None and present is not None:
            parent, _, name = key.rpartition(".")
            node = OmegaConf.select(config, parent) if parent else config
            if not isinstance(node, DictConfig):
                raise _UnlikeOthers
            with open_dict(config):
                del node[name]
        else:
            raise _UnlikeOthers


def _record_overrides(config: DictConfig, overrides: Iterable[Override]) -> None:
    """Record the overrides of a job in its node `hydra`, as Hydra does."""
    settings = config.hydra
    own = [(str(o.input_line), o.key_or_group) for o in overrides if not o.is_hydra_override()]
    settings.overrides.task = [word for word, _ in own]
    if not OmegaConf.is_interpolation(settings.job, "override_dirname"):  # before Hydra 1.4
        form = settings.job.config.override_dirname
        kept = sorted(word for word, key in own if key not in form.exclude_keys)
        settings.job.override_dirname = form.item_sep.join(kept).replace("=", form.kv_sep)
