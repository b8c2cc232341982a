"""Hydra composes each config twice: here it is composed once, so that what was checked is what runs."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.types import RunMode
from omegaconf import DictConfig

from hydrant.config.messages import HYDRA_ERRORS


@contextmanager
def composing_once(words: Sequence[str]) -> Generator[None]:
    """While it lasts, a config that was composed is given out, once, where Hydra would compose it again.

    So are those of a sweep's jobs, which are composed to be checked and again to be started, also if files changed
    meanwhile, and that of a run, which Hydra composes to look up `hydra.mode`. `words` are the command line's.
    """
    composed: dict[str, bytes | Exception] = {}
    compose, ask = ConfigLoaderImpl.load_configuration, Hydra.get_mode
    is_sweep = not {"-m", "--multirun"}.isdisjoint(words)

    @functools.wraps(compose)
    def load(self: ConfigLoaderImpl, *arguments: Any, **options: Any) -> DictConfig:
        asked = repr((arguments, options))
        match composed.pop(asked, None):
            case bytes() as found:  # 20 kB, read in a hundredth of the time that composing takes
                return pickle.loads(found)
            case Exception() as error:
                raise error
            case None:
                pass
        try:
            config = compose(self, *arguments, **options)
        except HYDRA_ERRORS as error:
            composed[asked] = error
            raise
        composed[asked] = pickle.dumps(config)
        return config

    def mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        if is_sweep:
            return None  # whatever it is, the flag goes before it
        try:
            found = self.compose_config(config_name, overrides, RunMode.RUN).hydra.mode
        except HYDRA_ERRORS:  # these may be the words of a sweep that names the mode itself
            found = ask(self, config_name, overrides)
        return found or RunMode.RUN

    ConfigLoaderImpl.load_configuration, Hydra.get_mode = load, mode
    try:
        yield
    finally:
        ConfigLoaderImpl.load_configuration, Hydra.get_mode = compose, ask
