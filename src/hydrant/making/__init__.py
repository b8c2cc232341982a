"""Config nodes -> objects: here alone Hydra's `instantiate` is called."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from hydrant.config.refusals import refusals
from hydrant.errors import ConfigError


def make(config: Mapping[str, Any], group: str) -> Any:
    """The part that a group of the config has chosen.

    Raises:
        ConfigError: it refuses its arguments.
    """
    with refusals(group, config):
        return make_node(config[group])


def make_node(node: Mapping[str, Any]) -> Any:
    """What a node with a `_target_` makes; whatever that raises."""
    return instantiate(OmegaConf.create({**node, "_convert_": "all"}))


@contextlib.contextmanager
def within(prefix: str, settings: Mapping[str, Any]) -> Generator[None]:
    """Errors about keys of these settings name them as they stand in the config: `optimizers.critic.` before them.

    Raises:
        ConfigError: the one raised in here, renamed.
    """
    try:
        yield
    except ConfigError as error:
        if error.key.partition(".")[0] in settings:
            raise ConfigError(f"{prefix}{error.key}", error.reason) from error
        raise
