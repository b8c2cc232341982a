"""Composed configs, which several tests of a process share."""

from copy import deepcopy
from functools import cache
from typing import Any

from hydrant.config.check import check
from hydrant.config.compose import compose


@cache
def checked(words: tuple[str, ...]) -> Any:
    return check(compose(list(words)))


def optimizer_node(option: str, *words: str) -> dict[str, Any]:
    """Return the checked `optimizer` of a config with `optimizer=option` and these overrides."""
    return deepcopy(dict(checked((f"optimizer={option}", *words))["optimizer"]))
