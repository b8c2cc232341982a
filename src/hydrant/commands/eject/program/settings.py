"""Stands for the constants of an ejected program, whose values come from a config."""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name.isupper():
        raise AttributeError(name)
    return {} if name == "COMPILE" else None  # a decorator takes these as its arguments when it is imported
