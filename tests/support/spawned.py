"""Call a function on several ranks, each in a process of its own, and let forks of this process be jobs of sweeps."""

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing import forkserver, util
from typing import Any
from unittest import mock

import torch
import torch.multiprocessing as mp
from processes import fork
from quick_runs import draw_pixels

from hydrant.safety.targets import preload
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


def serve_forks() -> None:
    """Make a fork of this process its fork server, but where GPUs are, which forks of a process with torch cannot use.

    Otherwise it would be a new process, which imports everything.
    """
    if not torch.cuda.is_available():
        forkserver._forkserver._forkserver_pid = None  # of the process that this one is a fork of
        for path in PRELOAD:
            preload(path)  # which runs in this process import too
        with mock.patch.object(util, "spawnv_passfds", _fork_server):
            start_server(PRELOAD)


def _fork_server(_: object, words: Sequence[str], descriptors: Sequence[int]) -> int:
    """Return the pid of a fork that goes on as `python -c <last word>` would, with these descriptors alone."""

    def serve() -> None:
        for low, high in pairwise([2, *sorted(descriptors), 2**16]):
            os.closerange(low + 1, high)
        warnings.resetwarnings()  # pytest makes them errors
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        draw_pixels(setattr)
        os.fsync = os.fstat
        # A test may have asked torch for GPUs in this process; a real fork server asks NVML, which forks may do.
        torch.cuda._is_in_bad_fork = lambda: False
        importlib.reload(forkserver)  # whose lock this process holds
        with contextlib.suppress(SystemExit):
            exec(words[-1], {})

    return fork(serve)
