"""Ranks that call a function, without the end of the interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp


def spawn(function: Callable[..., None], *arguments: object, num_ranks: int, join: bool = True) -> Any:
    """Call `function(rank, *arguments)` in a process for each rank, like `torch.multiprocessing.spawn`.

    A rank that has finished ends at once: gloo's threads sometimes abort a process whose interpreter is being torn down
    (github.com/pytorch/pytorch/pull/179291). `hydrant` ends so too.
    """
    return mp.spawn(_call_and_leave, args=(function, arguments), nprocs=num_ranks, join=join)  # type: ignore[no-untyped-call]


def _call_and_leave(rank: int, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    function(rank, *arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
