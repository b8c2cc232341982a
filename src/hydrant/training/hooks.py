"""Hooks: objects of the user's whose methods the loop calls."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from hydrant.clock import Clock, Interval
from hydrant.config.error_keys import as_config_error, prefix_error_keys
from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError, suggestion

EVENTS = {
    "check": "plan",
    "on_start": "trainer",
    "before_update": "trainer, num_updates",
    "after_update": "trainer, num_updates",
    "on_evaluation": "trainer, row",
    "on_checkpoint": "trainer, path",
    "on_end": "trainer",
}
"""The methods that a hook may have, with their arguments. docs/guides/hooks.md says when each is called."""

UPDATE_EVENTS = ("before_update", "after_update")
"""Those that `every` of the hook applies to."""


class Hooks:
    """The hooks of a run by name, in the order of the config."""

    def __init__(self, hooks: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> None:
        self._hooks, self._nodes = dict(hooks), nodes

    def call(self, event: str, *arguments: Any, names: Collection[str] | None = None) -> None:
        """Call the method `event` of all hooks that have it, or of those in `names`."""
        for name in self._hooks if names is None else names:
            if method := getattr(self._hooks[name], event, None):
                method(*arguments)

    def check(self, plan: Any) -> None:
        """Let each hook check the plan of the run.

        Raises:
            ConfigError: a hook does not fit the run; the error names the hook's key.
        """
        for name in self._hooks:
            with _errors_of(name, self._nodes[name]):
                self.call("check", plan, names=[name])

    def listens(self, event: str) -> bool:
        """Return whether a hook has the method `event`."""
        return any(hasattr(hook, event) for hook in self._hooks.values())

    def intervals(self, clock: Clock) -> dict[str, Interval]:
        """Return how often each hook is called around an update; those without such a method are left out.

        Raises:
            ConfigError: `every` of a hook is not a duration.
        """
        called = {n: h for n, h in self._hooks.items() if any(hasattr(h, event) for event in UPDATE_EVENTS)}
        every = {name: getattr(hook, "every", None) for name, hook in called.items()}
        return {
            n: Interval(1) if e is None else clock.interval(e, f"hooks.{n}.every") for n, e in every.items()
        }

    @property
    def has_state(self) -> bool:
        return self.listens("state_dict")

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the hooks that have one. Ranks have equal states, of which that of rank 0 is saved."""
        return {name: hook.state_dict() for name, hook in self._hooks.items() if hasattr(hook, "state_dict")}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the states. A hook that was added since, which resume_strict=false allows, has none."""
        for name in self.state_dict().keys() & states.keys():
            self._hooks[name].load_state_dict(states[name])


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
    return Hooks(hooks, nodes)


def _check_methods(key: str, hook: Any) -> None:
    kind, listing = type(hook).__name__, ", ".join(EVENTS)
    for name in (n for n in dir(hook) if n.startswith("on_") and n not in EVENTS):
        hint = suggestion(name, EVENTS, "Hooks have")
        raise ConfigError(f"{key}._target_", f"nothing calls the method {name} of {kind}{hint}")
    methods = {name: getattr(hook, name) for name in EVENTS if hasattr(hook, name)}
    if not methods:
        raise ConfigError(f"{key}._target_", f"{kind} is no hook: it has none of the methods {listing}")
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
