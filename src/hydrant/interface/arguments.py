"""The arguments of the calls that Python offers, and the tables that they return; pandas is optional."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hydrant.checks import nearest
from hydrant.errors import ConfigError, quoted, shown
from hydrant.imports.distribution import require_extra
from hydrant.runs.log_setup import process_settings

if TYPE_CHECKING:
    import pandas as pd


P = ParamSpec("P")
R = TypeVar("R")


def known_arguments(call: Callable[P, R]) -> Callable[P, R]:
    """Let a call of the interface say what to write in place of arguments that it does not have."""
    signature = inspect.signature(call)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    names = [one.name for one in parameters if one.kind is not inspect.Parameter.VAR_POSITIONAL]
    title = call.__qualname__ if "." in call.__qualname__ else f"hydrant.{call.__name__}"
    listed = ", ".join(f"{one.name}=..." if one.name in names else f"*{one.name}" for one in parameters)
    usage = f"write {title}({listed})"

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in [name for name in kwargs if name not in names]:
            remedy = _remedy(name, kwargs[name], names) or usage
            raise ConfigError(name, f"{title} has no such argument", remedy=remedy)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError("", f"{title}: {error}", remedy=usage) from None
        return call(*args, **kwargs)

    return checked


def _remedy(name: str, value: Any, names: Sequence[str]) -> str:
    """Return what to write: another argument, a key of the config, or what the key of another framework is here."""
    close, text = nearest(name, names)[:1], getattr(value, "__name__", "") or _text(value)
    if "config" not in names and "overrides" not in names:
        return f"did you mean {close[0]}=...?" if close else ""
    if (said := _remedy_of(f"{name}={text}")) is None:
        return f'give it to the config: hydrant.compose(["{name}={text}"])'
    meant = next((meant for meant in names if said == f"write {meant}={quoted(text)}"), None)
    if meant or (close and not said.startswith("write ")):
        return f"did you mean {meant or close[0]}=...?"
    if said.startswith("write "):
        return f"in the list of hydrant.compose, {said}"
    return f"{said or 'leave it out'}. Keys of the config belong into the list of hydrant.compose"


def _remedy_of(override: str) -> str | None:
    """Return what the error about an override says to do; None if it is right."""
    from hydrant.config.check import check
    from hydrant.config.compose import HYDRA_LOCK, compose_run, without_hydra
    from hydrant.config.error_messages import HYDRA_ERRORS, explain

    with HYDRA_LOCK, process_settings():
        try:
            check(without_hydra(compose_run([override])))
        except (ConfigError, *HYDRA_ERRORS) as error:
            return explain(error).remedy
    return None


def _text(value: Any) -> str:
    """Return a value as the override of a config has it; of an object, the name of its class."""
    if value is None or isinstance(value, (bool, int, float, str, list, tuple)):
        text = "null" if value is None else str(list(value) if isinstance(value, tuple) else value)
        return text.lower() if isinstance(value, bool) else text
    return type(value).__name__


def list_of_texts(name: str, value: Iterable[Any]) -> list[str]:
    """Return the texts of the argument `name` as a list.

    Raises:
        ConfigError: it is one text, or holds something else.
    """
    if isinstance(value, str):
        raise ConfigError(name, needs=f"a list, such as [{value!r}], not a text")
    texts = list(value)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(name, f"needs a list of texts, but {shown(text)} is none")
    return texts


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame.

    Raises:
        ConfigError: pandas is not installed.
    """
    require_extra("pandas", ["pandas"], "pandas", "a table of results")
    import pandas as pd

    return pd.DataFrame([dict(row) for row in rows])
