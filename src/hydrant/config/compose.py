"""Compose configs by Hydra's Compose API, without starting anything."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict

from hydrant.config.command_line import check_grid, check_overrides
from hydrant.config.error_messages import explain_unchecked
from hydrant.config.groups import conf_dir
from hydrant.config.hydra_guard import check_hydra_node, check_receiver
from hydrant.config.option_lists import expand_lists
from hydrant.config.replaced_options import replaced_options, replacing
from hydrant.config.resolvers import register_resolvers
from hydrant.config.search_path import config_dir
from hydrant.errors import ConfigError

ENTRY = "train"
"""The primary config: conf/train.yaml."""

_OF_EXPERIMENT = ("experiment", "hydra.searchpath")
"""The overrides that decide which options an experiment has."""

HYDRA_LOCK = threading.RLock()
"""Held while a config is composed, because Hydra's state, and what is set for it, belong to the whole process."""

_VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
"""1.4 is its own base, and warns if it is given one."""


@dataclass(frozen=True)
class Primary:
    """The config that is composed, and where it is: what --config-path, --config-name and --config-dir change."""

    folder: Path
    name: str = ENTRY
    last_folder: Path | None = None


class Composer:
    """Composes the primary config with overrides, inside of `composing`.

    Args:
        name: of the primary config.
        words: the overrides on the command line. Only these consent to `allow_targets`, receivers of the results and
            so on.
    """

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name, self.words = name, words

    @property
    def loader(self) -> ConfigLoader:
        return GlobalHydra.instance().config_loader()

    def load(self, overrides: Iterable[str], mode: RunMode) -> DictConfig:
        """Return a config as Hydra composes it, without what an experiment sets for options that others replace."""
        words = list(overrides)
        with explain_unchecked():
            config = self.loader.load_configuration(self.name, words, mode)
            choices = config.hydra.runtime.choices
            if choices.get("experiment") is None:
                return config
            kept = [o.input_line or "" for o in self.parse(words) if o.key_or_group in _OF_EXPERIMENT]
            before = self.loader.compute_defaults_list(self.name, kept, mode).overrides.known_choices
            if not (replaced := replaced_options(before, choices)):
                return config
            with replacing(replaced, [*self.words, *words]):
                return self.loader.load_configuration(self.name, words, mode)

    def compose(self, overrides: Iterable[str], *, sends_results: bool = True) -> DictConfig:
        """Return the checked config of a run, with the node `hydra`.

        Args:
            overrides: one option each.
            sends_results: also check who receives the results.

        Raises:
            HydrantError, or one of `HYDRA_ERRORS`: It cannot be composed.
        """
        config = self.load(overrides, RunMode.RUN)
        check_hydra_node(config, self.words)
        if sends_results:
            check_receiver(config, self.words)
        config.hydra.mode = config.hydra.mode or RunMode.RUN
        return config

    def compose_sweep(self, overrides: Iterable[str]) -> DictConfig:
        """Return the checked config of a sweep, in which a key with several values has its default.

        Raises:
            HydrantError, or one of `HYDRA_ERRORS`: It cannot be composed.
        """
        config = self.load(overrides, RunMode.MULTIRUN)
        check_hydra_node(config, self.words)
        check_receiver(config, self.words)
        return config

    def compose_command(self, *, is_sweep: bool) -> DictConfig:
        """Return the config of a command: that of a sweep if it has --multirun, or a config file says so.

        Raises:
            HydrantError, or one of `HYDRA_ERRORS`: It cannot be composed.
        """
        if is_sweep or "hydra.mode=MULTIRUN" in self.words:
            return self.compose_sweep([*self.words, "hydra.mode=MULTIRUN"])
        if any(override.is_sweep_override() for override in self.parse(self.words)):
            config = self.compose_sweep(self.words)  # a run, composed below, refuses several values
            if config.hydra.mode == RunMode.MULTIRUN:
                return config
        config = self.compose(self.words)
        return self.compose_sweep(self.words) if config.hydra.mode == RunMode.MULTIRUN else config

    def parse(self, overrides: Sequence[str]) -> list[Override]:
        """Return parsed overrides, of which `glob(*)` knows the options.

        Raises:
            ConfigError: One of them cannot be parsed.
        """
        with explain_unchecked():
            return OverridesParser.create(config_loader=self.loader).parse_overrides(list(overrides))


@contextmanager
def composing(words: Sequence[str] = (), primary: Primary | None = None) -> Generator[Composer]:
    """Initialize Hydra for composing, in one thread at a time. The Hydra app of this process is restored afterwards.

    Args:
        words: the overrides on the command line, with one option each.
        primary: conf/train.yaml by default.
    """
    primary = primary or Primary(conf_dir())
    with HYDRA_LOCK:
        register_resolvers()
        app, base = GlobalHydra.instance().hydra, VersionBase.instance()
        version: Any = base.version_base
        GlobalHydra.instance().clear()
        token = config_dir.set(primary.last_folder)
        try:
            folder = str(primary.folder.absolute())
            with hydra.initialize_config_dir(config_dir=folder, job_name=ENTRY, **_VERSION_BASE):
                yield Composer(primary.name, words)
        finally:
            config_dir.reset(token)
            GlobalHydra.instance().hydra, base.version_base = app, version


def compose(overrides: Sequence[str], from_user: Sequence[str] | None = None) -> DictConfig:
    """Return the config that `train` would run with these overrides.

    `from_user` are the overrides that the user wrote on the command line, default all. Only these may consent to
    `allow_targets`.

    Raises:
        HydrantError, or one of `HYDRA_ERRORS`: The config cannot be composed.
    """
    check_overrides(overrides)
    with composing(overrides if from_user is None else from_user) as composer:
        return without_hydra(composer.compose(expand_lists(overrides), sends_results=False))


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """Return the config that `train` would run with these overrides, with the node `hydra`.

    Raises:
        HydrantError, or one of `HYDRA_ERRORS`: The config cannot be composed.
    """
    check_overrides(overrides)
    with composing(overrides) as composer:
        return composer.compose(expand_lists(overrides))


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a composed config without the node `hydra`."""
    config = config.copy()
    with open_dict(config):
        del config["hydra"]
    return config


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of a grid such as `precision=fp32,bf16 seed=0,1`.

    Raises:
        ConfigError: An override cannot be parsed or has no values.
    """
    check_overrides(overrides)
    with composing() as composer:
        parsed = composer.parse(expand_lists(overrides))
    check_grid(parsed)
    for override in parsed:
        if override.key_or_group == "sweep":
            message = "works with train --multirun only; write the values here: optimizer=adamw,sgd"
            raise ConfigError("sweep", message)
    return grid(parsed)


def grid(overrides: Iterable[Override]) -> list[list[str]]:
    """Return every combination of the values of parsed overrides. Of several for a key, the last one counts."""
    values = dict[str, list[str]]()
    for override in overrides:
        key = override.get_key_element()
        is_swept = override.is_sweep_override()
        texts = override.sweep_string_iterator() if is_swept else [override.get_value_element_as_str()]
        values[key] = [f"{key}={text}" for text in texts]
    return [list(words) for words in itertools.product(*values.values())]


def uncompiled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked config with the group `compile` replaced by `compile=eager` and nothing else changed."""
    return {**config, "compile": OmegaConf.to_container(compose(["compile=eager"]).compile)}
