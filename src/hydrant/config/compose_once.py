"""Patch Hydra 1.3.8 so that it composes each config once, and therefore runs exactly the config that was checked.

Plain Hydra composes a single run twice (`Hydra.get_mode` composes it only to read `hydra.mode`) and each job of a sweep
twice (the sweeper to validate it, the launcher to start it). That doubles the start time, and a file edited in between
makes the second config another one. The patch replaces `ConfigLoaderImpl.load_configuration` and `Hydra.get_mode`.

tests/config/test_compose_once.py fails when plain Hydra composes only once: then this module can be deleted.
"""

from __future__ import annotations

import functools
import pickle
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.types import RunMode
from omegaconf import DictConfig

from hydrant.config.error_messages import HYDRA_ERRORS


@contextmanager
def compose_once(*, is_sweep: bool) -> Generator[None]:
    """Make Hydra reuse a composed config, once, where it would compose the same config again.

    The first request for a config composes it and keeps the result, or the error. The second request with equal
    arguments gets that result, even if config files changed in between. `is_sweep`: the command has --multirun.
    """
    results: dict[str, bytes | Exception] = {}
    load_configuration, get_mode = ConfigLoaderImpl.load_configuration, Hydra.get_mode

    @functools.wraps(load_configuration)
    def load_once(self: ConfigLoaderImpl, *arguments: Any, **options: Any) -> DictConfig:
        request = repr((arguments, options))
        previous = results.pop(request, None)
        if isinstance(previous, bytes):  # loaded in a hundredth of the time that composing takes
            return pickle.loads(zlib.decompress(previous))
        if previous is not None:
            raise previous
        try:
            config = load_configuration(self, *arguments, **options)
        except HYDRA_ERRORS as error:
            results[request] = error
            raise
        results[request] = zlib.compress(
            pickle.dumps(config), 1
        )  # 5 kB instead of 24; a sweep may have 10,000
        return config

    def mode_of_run(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        if is_sweep:
            return None  # the flag takes precedence over hydra.mode
        try:
            # Hydra.get_mode composes with RunMode.MULTIRUN; with RunMode.RUN the result can be reused by the run.
            mode = self.compose_config(config_name, overrides, RunMode.RUN).hydra.mode
        except HYDRA_ERRORS:  # these may be overrides of a sweep whose config sets hydra.mode
            mode = get_mode(self, config_name, overrides)
        return mode or RunMode.RUN

    ConfigLoaderImpl.load_configuration, Hydra.get_mode = load_once, mode_of_run
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration, Hydra.get_mode = load_configuration, get_mode
