"""Repeat work that grows with the number of runs without slowing the runs down."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

P = ParamSpec("P")

_REST = 9.0
"""How many times the duration of a call the next one is left out, so calls take a tenth of the time at most."""


def sparing(function: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls this one, or does nothing if the last call took long and was a short time ago."""
    next_call = 0.0

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> None:
        nonlocal next_call
        began = time.monotonic()
        if began >= next_call:
            function(*arguments, **named)
            ended = time.monotonic()
            next_call = ended + _REST * (ended - began)

    return call
