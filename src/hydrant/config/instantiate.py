"""Config nodes -> objects. Only this module calls Hydra's `instantiate`."""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import hydra
import hydra.utils
from omegaconf import OmegaConf

from hydrant.config.error_messages import as_config_error
from hydrant.files.plain_values import children
from hydrant.safety.targets import allowed_targets

_factories: ContextVar[dict[str, Any] | None] = ContextVar("factories", default=None)


@contextmanager
def share_factories() -> Generator[None]:
    """Let Hydra read each different `_partial_` node once, for many runs whose configs differ little.

    Each caller gets a factory of its own, so nothing that it changes reaches another.
    """
    token = _factories.set({} if _factories.get() is None else _factories.get())
    try:
        yield
    finally:
        _factories.reset(token)


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
    factories = _factories.get()
    if factories is None or not node.get("_partial_") or any(map(_builds_parts, node.values())):
        return _instantiate(node)
    key = repr(node)
    if key not in factories:
        factories[key] = _instantiate(node)
    return copy.deepcopy(factories[key])


def _instantiate(node: Mapping[str, Any]) -> Any:
    config = OmegaConf.create({**node, "_convert_": "all"})
    if hydra.__version__.startswith("1.3."):
        return hydra.utils.instantiate(config)
    return hydra.utils.instantiate(config, _execution_whitelist_=allowed_targets())


def _builds_parts(value: Any) -> bool:
    """Return whether Hydra makes objects for a value: they may have a state, which a factory shares."""
    is_part = isinstance(value, Mapping) and "_target_" in value
    return is_part or any(_builds_parts(item) for _, item in children(value, ""))
