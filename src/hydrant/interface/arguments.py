"""Check arguments of the calls that Python offers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hydrant.errors import ConfigError, shown


def list_of_texts(name: str, value: Iterable[Any]) -> list[str]:
    """Return the texts of the argument `name` as a list.

    Raises:
        ConfigError: it is one text, or holds something else.
    """
    if isinstance(value, str):
        raise ConfigError(name, f"needs a list, such as [{value!r}], not a text")
    texts = list(value)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(name, f"needs a list of texts, but {shown(text)} is none")
    return texts
