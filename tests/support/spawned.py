"""Call a function on several ranks, each in a process of its own; and the server of such processes."""

import gc
import os
import select
import socket
import sys
from collections.abc import Callable
from multiprocessing import connection, forkserver
from typing import Any

import torch
import torch.multiprocessing as mp

from hydrant.safety.targets import preload
from hydrant.sweeps.executors.base import Unit
from hydrant.sweeps.fork_server.call import start_server

PRELOAD = ("hydrant.commands.train", "hydrant.sweeps.executors.base", "hydrant.runs.execute",
           *Unit.paths_to_preload([]), "torch._dynamo", "torch.distributed.fsdp")  # fmt: skip
"""Modules that ranks and jobs need. They are forked from a server that has imported them."""


def serve_forks() -> None:
    """Make a fork of this process its fork server. Otherwise it would be a new process, which imports everything.

    The fork imports the rest when the first process is asked of it.
    """
    server: Any = forkserver._forkserver
    listener = socket.socket(socket.AF_UNIX)
    address = connection.arbitrary_address("AF_UNIX")
    listener.bind(address)
    listener.listen()
    alive, server._forkserver_alive_fd = os.pipe()
    server._forkserver_address = address
    options = dict[str, int]()
    if hasattr(server, "_forkserver_authkey"):  # since Python 3.14: a secret of server and clients
        server._forkserver_authkey = os.urandom(32)
        options["authkey_r"], writer = os.pipe()
        os.write(writer, server._forkserver_authkey)
        os.close(writer)
    server._forkserver_pid = os.fork()
    if not server._forkserver_pid:
        os.close(server._forkserver_alive_fd)
        try:
            if listener in select.select([listener, alive], [], [])[0]:
                for path in PRELOAD:
                    preload(path)
                os.fsync = os.fstat
                gc.freeze()
            forkserver.main(listener.fileno(), alive, [], **options)
        finally:
            os._exit(0)
    for read_by_server in (alive, *options.values()):
        os.close(read_by_server)
    listener.close()


def serve_forks_again() -> None:
    """Do so in a fork. A test may have asked torch for GPUs before; a real server asks NVML, which forks may do."""
    if not torch.cuda.is_available():
        torch.cuda._is_in_bad_fork = lambda: False
    serve_forks()


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
    mp.set_start_method(None, force=True)  # type: ignore[no-untyped-call]  # data workers fork: ranks have no such server
    function(rank, *arguments)
    sys.stdout.flush()
    os._exit(0)
