"""Call a function on several ranks, each in a process of its own."""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

from hydrant.sweeps.executors.base import Unit
from hydrant.sweeps.fork_server.call import start_server

PRELOAD = (
    "hydrant.commands.train",
    "hydrant.sweeps.executors.base",
    "hydrant.runs.execute",
    *Unit.paths_to_preload([]),
    "torch._dynamo",
    "torch.distributed.fsdp",
)
"""Modules that ranks need. They are forked from a server that has imported them."""


def spawn(
    function: Any, *arguments: object, num_ranks: int, join: bool = True, method: str = "forkserver"
) -> Any:
    """Call `function(rank, *arguments)` in a process for each rank, like `torch.multiprocessing.spawn`.

    When the function returns, the rank leaves with `os._exit`, as the commands of `hydrant` do: gloo's threads
    sometimes abort a process while its interpreter shuts down (github.com/pytorch/pytorch/pull/179291).

    Args:
        method: `forkserver`: the ranks are forks of the server of sweeps, which has imported torch; `fork`: of this
            process, which has not used its GPUs yet.
    """
    if method == "forkserver":
        start_server(PRELOAD)
    call = (dict(os.environ), function, arguments)  # the server has the variables of its start
    return mp.start_processes(_call_and_exit, args=call, nprocs=num_ranks, join=join, start_method=method)  # type: ignore[no-untyped-call]


def _call_and_exit(
    rank: int, environment: dict[str, str], function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(rank, *arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
