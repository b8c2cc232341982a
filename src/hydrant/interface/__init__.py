"""The arguments of the calls that Python offers, and the tables that they return; pandas is optional."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hydrant.config.groups import own_words
from hydrant.errors import ConfigError, nearest, shown
from hydrant.installation import require_extra

if TYPE_CHECKING:
    import pandas as pd


P = ParamSpec("P")
R = TypeVar("R")


def known_arguments(call: Callable[P, R]) -> Callable[P, R]:
    """Let a call of the interface say what to write in place of arguments that it does not have."""
    names = [name for name in inspect.signature(call).parameters if name != "self"]
    title = call.__qualname__ if "." in call.__qualname__ else f"hydrant.{call.__name__}"

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in [name for name in kwargs if name not in names]:
            remedy = _remedy(name, kwargs[name], names)
            raise ConfigError(name, f"{title} has no such argument", remedy=remedy)
        return call(*args, **kwargs)

    return checked


def _remedy(name: str, value: Any, names: Sequence[str]) -> str:
    """Return what to write: another argument, a key of the config, or what the key of another framework is here."""
    if close := nearest(name, names):
        return f"did you mean {close[0]}=...?"
    if "config" not in names and "overrides" not in names:
        return f"it has {', '.join(names)}"
    is_plain = value is None or isinstance(value, (bool, int, float, str, list, tuple))
    text = getattr(value, "__name__", type(value).__name__)
    if is_plain:
        text = value if isinstance(value, str) else shown(value)
    if (meant := own_words(name, text)) is not None:
        return f"in the list of hydrant.compose, {meant}"
    return f'give it to the config: hydrant.compose(["{name}={text}"])'


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame.

    Raises:
        ConfigError: pandas is not installed.
    """
    require_extra("pandas", ["pandas"], "pandas", "a table of results")
    import pandas as pd

    return pd.DataFrame([dict(row) for row in rows])
