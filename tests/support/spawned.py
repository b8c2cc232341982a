"""Call a function on several ranks, each in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp


def spawn(function: Callable[..., None], *arguments: object, num_ranks: int, join: bool = True) -> Any:
    """Call `function(rank, *arguments)` in a process for each rank, like `torch.multiprocessing.spawn`.

    When the function returns, the rank leaves with `os._exit`, as the commands of `hydrant` do: gloo's threads
    sometimes abort a process while its interpreter shuts down (github.com/pytorch/pytorch/pull/179291).
    """
    return mp.spawn(_call_and_exit, args=(function, arguments), nprocs=num_ranks, join=join)  # type: ignore[no-untyped-call]


def _call_and_exit(rank: int, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    function(rank, *arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
