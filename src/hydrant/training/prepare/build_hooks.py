"""Build the hooks of a config, and check that they fit the run."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from hydrant.checks import suggestion
from hydrant.config.error_keys import as_config_error, prefix_error_keys
from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError
from hydrant.training.hooks import EVENTS, Hooks
from hydrant.training.plan import Plan

_NOT_RUN = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def make_hooks(nodes: Mapping[str, Mapping[str, Any]]) -> Hooks:
    """Build the hooks of the config.

    Raises:
        ConfigError: a hook cannot be built, or has no method that is called.
    """
    hooks: dict[str, Any] = {}
    for name, node in nodes.items():
        with _errors_of(name, node):
            hooks[name] = instantiate_node(node)
            _check_methods(f"hooks.{name}", hooks[name])
    return Hooks(hooks)


def check_hooks(plan: Plan) -> None:
    """Call `check(plan)` of each hook.

    Raises:
        ConfigError: a hook does not fit the run; the error names the hook's key.
    """
    for name, node in plan.config["hooks"].items():
        with _errors_of(name, node):
            plan.hooks.call("check", plan, names=[name])


def _check_methods(key: str, hook: Any) -> None:
    kind, listing = type(hook).__name__, ", ".join(EVENTS)
    for name in dir(hook):
        if name.startswith("on_") and name not in EVENTS and callable(getattr(hook, name, None)):
            hint = suggestion(name, EVENTS, "Hooks have")
            raise ConfigError(f"{key}._target_", f"nothing calls the method {name} of {kind}{hint}")
    methods = {name: getattr(hook, name) for name in EVENTS if hasattr(hook, name)}
    if not methods:
        raise ConfigError(f"{key}._target_", f"{kind} is no hook: it has none of the methods {listing}")
    called = methods | {
        name: getattr(hook, name) for name in ("state_dict", "load_state_dict") if hasattr(hook, name)
    }
    for name, method in called.items():
        if any(is_kind(method) for is_kind in _NOT_RUN):
            message = (
                f"{kind}.{name} is async or has a yield, so a call would not run it; write a plain method"
            )
            raise ConfigError(f"{key}._target_", message)
    for name, method in methods.items():
        try:
            inspect.signature(method).bind(*EVENTS[name].split(", "))
        except TypeError:
            message = f"{kind}.{name} is called as {name}({EVENTS[name]}), which it does not take"
            raise ConfigError(f"{key}._target_", message) from None
    if hasattr(hook, "state_dict") != hasattr(hook, "load_state_dict"):
        raise ConfigError(f"{key}._target_", f"{kind} needs both state_dict and load_state_dict, or none")


@contextmanager
def _errors_of(name: str, node: Mapping[str, Any]) -> Generator[None]:
    key = f"hooks.{name}"
    with prefix_error_keys(f"{key}.", node), as_config_error(key, node):
        yield
