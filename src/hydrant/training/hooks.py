"""Hooks: objects of the user, whose methods the training loop calls."""

from collections.abc import Collection, Mapping
from typing import Any, cast

from hydrant.clock import Clock, Interval, Updates

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
"""The events that follow the `every` of a hook."""


class Hooks:
    """The hooks of a run by name, in the order of the config."""

    def __init__(self, hooks: Mapping[str, Any]) -> None:
        self._hooks = dict(hooks)

    def call(self, event: str, *arguments: Any, names: Collection[str] | None = None) -> None:
        """Call the method `event` of all hooks that have it, or of those in `names`."""
        for name in self._hooks if names is None else names:
            if method := getattr(self._hooks[name], event, None):
                method(*arguments)

    def listens(self, event: str) -> bool:
        """Return whether a hook has the method `event`."""
        return any(hasattr(hook, event) for hook in self._hooks.values())

    def of(self, kind: type) -> list[str]:
        """Return the names of the hooks of this class."""
        return [name for name, hook in self._hooks.items() if isinstance(hook, kind)]

    def intervals(self, clock: Clock) -> dict[str, Interval | Updates]:
        """Return the interval of each hook with a method for updates.

        Raises:
            ConfigError: `every` of a hook is neither a duration nor a list of durations.
        """
        called = {n: h for n, h in self._hooks.items() if any(hasattr(h, event) for event in UPDATE_EVENTS)}
        return {n: _interval(getattr(h, "every", None), clock, f"hooks.{n}.every") for n, h in called.items()}

    @property
    def has_state(self) -> bool:
        return self.listens("state_dict")

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the hooks that have one. All ranks have equal states; the one of rank 0 is saved."""
        return {name: hook.state_dict() for name, hook in self._hooks.items() if hasattr(hook, "state_dict")}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore the states. A hook that was added later (resume_strict=false) has no saved state."""
        for name in self.state_dict().keys() & states.keys():
            self._hooks[name].load_state_dict(states[name])


def _interval(every: Any, clock: Clock, key: str) -> Interval | Updates:
    if isinstance(every, list):
        return Updates(frozenset(clock.updates(duration, key) for duration in cast("list[Any]", every)))
    return Interval(1) if every is None else clock.interval(every, key)
