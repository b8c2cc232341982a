"""What an experiment sets for an option goes with it, where the command line or `debug` chooses another option."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydrant.config.groups import option_fields, options_with
from hydrant.errors import shown
from hydrant.terminal.console import notice


@dataclass(frozen=True)
class Replaced:
    """An option that an experiment, or the primary config without one, would have, and the one that is chosen."""

    group: str
    option: str
    chosen: str

    def takes_along(self, field: str) -> bool:
        """Whether a field of the option goes with it: the chosen one has another default, or lacks it.

        A field that only the chosen option has was meant for it. One that no option has is for the check of arguments.
        """
        before, now = option_fields(self.group, self.option), option_fields(self.group, self.chosen)
        if field in now:
            return field in before and before[field] != now[field]
        return field in before or bool(options_with(self.group, field))


_active: ContextVar[tuple[Mapping[str, Replaced], dict[str, Any]]] = ContextVar("active", default=({}, {}))
"""Replaced options by their place in the config; and the fields that went with them, by key, with their values."""


def replaced_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Replaced]:
    """Return what differs between two choices of options, as Hydra records them, by place.

    >>> replaced_options({"optimizer": "sgd", "model": "mlp"}, {"optimizer": "adam", "model": "mlp"})
    {'optimizer': Replaced(group='optimizer', option='sgd', chosen='adam')}
    """
    parts = {key: (*key.partition("@")[::2], option, now.get(key)) for key, option in before.items()}
    return {
        place or group.replace("/", "."): Replaced(group, option, chosen)
        for group, place, option, chosen in parts.values()
        if isinstance(option, str) and isinstance(chosen, str) and option != chosen
    }


@contextmanager
def replacing(options: Mapping[str, Replaced], words: Sequence[str]) -> Generator[None]:
    """Let `take_replaced` take fields away in this context; then print those that `words` do not set, once."""
    fields = dict[str, Any]()
    token = _active.set((options, fields))
    try:
        yield
    finally:
        _active.reset(token)
    given = {word.lstrip("+~").partition("=")[0] for word in words}
    for place, replaced in options.items():
        gone = [f"{key}={shown(fields[key])}" for key in fields if key.rpartition(".")[0] == place]
        if gone := [text for text in gone if text.partition("=")[0] not in given]:
            own = f"because its {place} is {replaced.option}"
            _print(f"with {place}={replaced.chosen}, the experiment's {', '.join(gone)} is left out, {own}")


_print = cache(notice)


def take_replaced(content: Mapping[str, Any], path: str) -> None:
    """Take from the content of a config file what goes with a replaced option. Only experiments lose anything."""
    options, fields = _active.get()
    for place, replaced in options.items() if path.startswith("experiment/") else ():
        node: Any = content
        for name in place.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        for field in [*node] if isinstance(node, dict) else ():
            if "_target_" in node or replaced.takes_along(str(field)):
                fields[f"{place}.{field}"] = node.pop(field)
