"""Compose a config without starting a run, and the OmegaConf resolvers that configs use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

from hydrant.config.command_line import check_grid, check_overrides
from hydrant.config.error_messages import explain_unchecked
from hydrant.config.groups import conf_dir
from hydrant.config.hydra_guard import guard_hydra
from hydrant.config.job_folders import JobFolders
from hydrant.config.option_lists import expand_lists
from hydrant.config.schema import check_name
from hydrant.errors import ConfigError
from hydrant.imports.without_gc import import_without_gc
from hydrant.safety.targets import locate

ENTRY = "train"
"""The primary config: conf/train.yaml."""

_READERS = {
    "csv_input_shape": "hydrant.data.csv_layout.csv_input_shape",
    "csv_num_outputs": "hydrant.data.csv_layout.csv_num_outputs",
    "tokens_setting": "hydrant.data.token_splits.tokens_setting",
}
"""The resolvers that read files of data, by name. They are named by their paths, like a `_target_`, because the package
`data` is above this one. Each gets its node's parent as `_parent_`."""

HYDRA_LOCK = threading.RLock()
"""Held while a config is composed, because Hydra's state, and what is set for it, belong to the whole process."""


def register_resolvers(folders: JobFolders | None = None) -> None:
    """Register the OmegaConf resolvers, replacing earlier ones. `folders`: those of the sweep that begins."""
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("job_slug", (folders or JobFolders()).name_of, replace=True)
    OmegaConf.register_new_resolver("class_folders", class_folders, replace=True)
    OmegaConf.register_new_resolver("largest", largest, replace=True)
    OmegaConf.register_new_resolver("unless", unless, replace=True)
    for name, path in _READERS.items():
        OmegaConf.register_new_resolver(name, _imported(path), replace=True)


def _imported(path: str) -> Callable[..., Any]:
    """Return a resolver that imports the function at a path when it is first used."""

    def resolve(*arguments: Any, _parent_: DictConfig) -> Any:
        with import_without_gc():
            function = locate(path, "")
        return function(*arguments, _parent_=_parent_)

    return resolve


def compose(overrides: Sequence[str], from_user: Sequence[str] | None = None) -> DictConfig:
    """Return the config that `train` would run with these overrides.

    `from_user` are the overrides that the user wrote on the command line, default all. Only these may consent to
    `allow_targets`.

    Raises:
        HydrantError, or one of `HYDRA_ERRORS`: The config cannot be composed.
    """
    check_overrides(overrides)
    words = overrides if from_user is None else from_user
    # The node `hydra` has no effect here, but `train` would refuse it.
    with _composing(), guard_hydra(words, sends_results=False):
        return hydra_compose(ENTRY, overrides=expand_lists(overrides))


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """Return the config that `train` would run with these overrides, with the node `hydra`.

    Raises:
        HydrantError, or one of `HYDRA_ERRORS`: The config cannot be composed.
    """
    check_overrides(overrides)
    with _composing(), guard_hydra(overrides):
        return hydra_compose(ENTRY, overrides=expand_lists(overrides), return_hydra_config=True)


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of a grid such as `precision=fp32,bf16 seed=0,1`.

    Raises:
        ConfigError: An override cannot be parsed or has no values.
    """
    check_overrides(overrides)
    with _composing():
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(expand_lists(overrides))
        check_grid(parsed)
        for override in parsed:
            if override.key_or_group == "sweep":
                message = "works with train --multirun only; write the values here: optimizer=adamw,sgd"
                raise ConfigError("sweep", message)
        return BasicSweeper.split_arguments(parsed, None)[0]


def uncompiled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked config with the group `compile` replaced by `compile=eager` and nothing else changed."""
    return {**config, "compile": OmegaConf.to_container(compose(["compile=eager"]).compile)}


@contextmanager
def _composing() -> Generator[None]:
    """Initialize Hydra for composing, in one thread at a time. The Hydra app of this process is restored afterwards.

    Raises:
        HydrantError: Hydra raised one of `BUILTIN_ERRORS` about the overrides.
    """
    with HYDRA_LOCK:
        register_resolvers()
        app, base = GlobalHydra.instance().hydra, VersionBase.instance()
        version = base.version_base
        GlobalHydra.instance().clear()
        try:
            with (
                initialize_config_dir(version_base="1.3", config_dir=str(conf_dir()), job_name=ENTRY),
                explain_unchecked(),
            ):
                yield
        finally:
            GlobalHydra.instance().hydra, base.version_base = app, version


def new_run_folder(settings: DictConfig) -> Path:
    """Return the folder of a run that starts now, by the `hydra` node of its config."""
    _start_time.cache_clear()
    return Path(settings.run.dir)


def run_folder(root: str, name: str | None) -> str:
    """Return `outputs/lr_study` for a named run, else `outputs/<date>/<time>`."""
    if name is None:
        return f"{root}/{_start_time()}"
    check_name(str(name))
    return f"{root}/{name}"


@lru_cache
def _start_time() -> str:
    # Milliseconds, because a shell loop starts several runs in one second.
    return datetime.now().strftime("%Y-%m-%d/%H-%M-%S.%f")[:-3]


def unless(other: Any, default: Any) -> Any:
    """Return the default of a key that another key excludes: null if the other one has a value.

    `end_ratio: ${unless:${.gamma},0.01}` is 0.01, but null if the user gives gamma.
    """
    return default if other is None else None


def largest(value: Any) -> Any:
    """Return the largest of the numbers that a key takes one after the other; another value as it is.

    >>> largest({0: 64, 1000: 128}), largest(64)
    (128, 64)
    """
    if not isinstance(value, Mapping):
        return value
    return max((number for number in value.values() if isinstance(number, int)), default=None)


def class_folders(path: str) -> int:
    """Return the number of classes of an image folder: its subfolders.

    Raises:
        ConfigError: The folder does not exist.
    """
    folder = Path(path)
    if not folder.is_dir():
        message = f"{folder} is not a folder; it should hold one folder of images per class"
        raise ConfigError("data.root", message)
    return sum(1 for entry in folder.iterdir() if entry.is_dir())
