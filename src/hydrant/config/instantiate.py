"""Config nodes -> objects. Only this module calls Hydra's `instantiate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.utils import instantiate as hydra_instantiate
from omegaconf import OmegaConf

from hydrant.config.error_keys import as_config_error


def instantiate(config: Mapping[str, Any], key: str, *args: Any) -> Any:
    """Build the part that `config[key]` describes; with `args`, call a `_partial_` part with them.

    Raises:
        ConfigError: the part rejects one of its arguments; the error names its config key.
    """
    with as_config_error(key, config[key]):
        part = instantiate_node(config[key])
        return part(*args) if args else part


def instantiate_node(node: Mapping[str, Any]) -> Any:
    """Build what a node with a `_target_` describes. The target's exceptions pass through unchanged."""
    return hydra_instantiate(OmegaConf.create({**node, "_convert_": "all"}))
