"""Call a function on several ranks, each in a process of its own; and the server of such processes."""

import fcntl
import json
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

from hydrant.sweeps.executors.base import Unit
from hydrant.sweeps.fork_server.call import start_server

PRELOAD = ("hydrant.commands.train", "hydrant.sweeps.executors.base", "hydrant.runs.execute",
           *Unit.paths_to_preload([]), "torch._dynamo", "torch.distributed.fsdp")  # fmt: skip
"""Modules that ranks need. They are forked from a server that has imported them."""


def share_fork_server(folder: Path) -> None:
    """Let the processes with this folder use the fork server of the first that needs one: each would import torch.

    Any may end first. So each opens the pipe that keeps the server alive.
    """
    server: Any = forkserver._forkserver
    start, file, sharing = server.ensure_running, folder / "fork_server", os.getpid()

    def ensure_running() -> None:
        if server._forkserver_pid or not (server._forkserver_address or os.getpid() == sharing):
            start()  # again; or that of a fork alone
        elif not server._forkserver_address:
            with file.open("a+") as record:
                fcntl.flock(record, fcntl.LOCK_EX)
                record.seek(0)
                if line := record.read():
                    pipe, server._forkserver_address, key = json.loads(line)
                    server._forkserver_alive_fd = os.open(pipe, os.O_WRONLY)
                    server._forkserver_authkey = bytes.fromhex(key)
                    return
                start()
                pipe = f"/proc/{os.getpid()}/fd/{server._forkserver_alive_fd}"
                key = getattr(server, "_forkserver_authkey", b"").hex()  # since Python 3.14
                record.write(json.dumps([pipe, server._forkserver_address, key]))

    server.ensure_running = forkserver.ensure_running = ensure_running


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
