"""Call a function in a process that is forked from a server, which has done all slow imports.

What a run leaves behind in its process (default dtypes, random state, compiled graphs, a tracker's session, the
frames of an exception) ends with that process, so the next run starts from a clean state.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType, MappingProxyType
from typing import Any, Generic, TypeVar

from hydrant.errors import ConfigError
from hydrant.safety.targets import preload_paths
from hydrant.signals import STOP_SIGNALS, Stopped, killed_by, send_signal, stop_this_process
from hydrant.sweeps.fork_server import PRELOAD_VARIABLE
from hydrant.terminal.console import standard_streams

T = TypeVar("T")

_POLL_SECONDS = 0.5


class ProcessDied(Exception):
    """The process ended without a result. `exit_code` is negative for a signal, as in `subprocess`."""

    def __init__(self, exit_code: int) -> None:
        cause = killed_by(-exit_code) if exit_code < 0 else f"exit status {exit_code}"
        super().__init__(f"the process ended without a result: {cause}")
        self.exit_code = exit_code


@dataclass(frozen=True)
class CallResult(Generic[T]):
    """The result of the function, and the last signal that was forwarded to its process."""

    result: T
    signum: int | None


def call_isolated(
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    preload: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> CallResult[T | ProcessDied]:
    """Return `function(*arguments)`, called in a fresh process with this process's environment and standard streams.

    Function, arguments and result are pickled. Signals of `STOP_SIGNALS` that arrive during the call are forwarded to
    the process, and its result is still awaited. If this process dies, the other one receives SIGTERM. Several threads
    may call at once while the main thread is inside `forward_signals`.

    Args:
        preload: the paths of modules and parts that the server imports before it forks (`safety/targets.py:preload`).
            Only those of the first call, which starts the server.
        environment: variables to add to this process's environment, or to replace in it.

    Returns:
        The result, or ProcessDied if the process ended without one, with the last signal.
    """
    context = multiprocessing.get_context("forkserver")
    with forward_signals() as signals:
        with _start_or_join:
            start_server(preload)
            receiver, sender = context.Pipe(duplex=False)
            variables = {**os.environ, **environment}
            process = context.Process(target=_run_in_child, args=(sender, variables, function, arguments))
            if signals.signum is not None:
                return CallResult(ProcessDied(-signals.signum), signals.signum)
            process.start()
            sender.close()
        with signals.to_process(process.pid or 0):
            results: list[T] = []
            while not receiver.poll(_POLL_SECONDS):  # not blocking, which ray.cancel could not interrupt
                pass
            with contextlib.suppress(EOFError):
                results.append(receiver.recv())
            wait([process.sentinel])
        with _start_or_join:
            process.join()
        return CallResult(results[0] if results else ProcessDied(process.exitcode or 0), signals.signum)


_start_or_join = threading.Lock()
"""Held while a process is started or joined, because multiprocessing then also joins the processes of other threads."""


def start_server(paths: Sequence[str]) -> None:
    """Start the server, which imports modules while this process goes on. Does nothing if it runs already."""
    # With signals blocked: Ctrl-C in the terminal would end it in the middle of its imports.
    forkserver.set_forkserver_preload(["hydrant.sweeps.fork_server"])
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    # Paths, not modules: to find the module of a part, this process would have to import it.
    os.environ[PRELOAD_VARIABLE] = json.dumps(list(paths))
    try:
        resource_tracker.ensure_running()  # unblocks SIGINT and SIGTERM
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        forkserver.ensure_running()
    finally:
        del os.environ[PRELOAD_VARIABLE]
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class SignalForwarding:
    """Forwards signals of `STOP_SIGNALS` to child processes instead of interrupting this process.

    A KeyboardInterrupt would be lost where Python ignores exceptions, as in the callbacks of an import.
    """

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self.signum: int | None = None  # the last signal that arrived

    @contextlib.contextmanager
    def to_process(self, pid: int) -> Generator[None]:
        """Forward signals to this process too; one that has already arrived is sent now."""
        self._pids.add(pid)
        if self.signum is not None:
            send_signal(self.signum, pid)
        try:
            yield
        finally:
            self._pids.remove(pid)

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal, as `signal.signal` calls it."""
        del frame
        self.signum = signum
        for pid in tuple(self._pids):
            send_signal(signum, pid)


_active: list[SignalForwarding] = []


@contextlib.contextmanager
def forward_signals() -> Generator[SignalForwarding]:
    """Forward signals to child processes. Inside another `forward_signals`, use that one."""
    if _active:
        yield _active[0]
        return
    signals = SignalForwarding()
    is_main = threading.current_thread() is threading.main_thread()  # only it may set handlers
    previous_handlers = {s: signal.signal(s, signals.handle) for s in STOP_SIGNALS} if is_main else {}
    _active.append(signals)
    try:
        yield signals
    finally:
        _active.remove(signals)
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)


def _run_in_child(
    sender: Connection, environment: dict[str, str], function: Callable[..., T], arguments: tuple[Any, ...]
) -> None:
    os.setpgrp()  # Ctrl-C in the terminal reaches only the parent, which forwards it
    os.environ.clear()
    os.environ.update(environment)  # the server has the environment of its first call
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        with standard_streams():
            _check_cuda()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            result = function(*arguments)
    except KeyboardInterrupt:  # SIGINT before the function installed its own handler
        os._exit(128 + signal.SIGINT)
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        sender.send(result)
        sender.close()


def _check_cuda() -> None:
    """Exit if an import has initialized CUDA in the server: no forked process can use it then."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda._is_in_bad_fork():
        cause = "a package that the config names uses the GPU while it is imported; do that in a function"
        sys.exit(f"error: {cause}, because jobs are forked after the imports")


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        stop_this_process()


def run_isolated(
    function: Callable[..., T],
    config: Mapping[str, Any],
    *arguments: Any,
    preload: Sequence[str] | None = None,
) -> T | ProcessDied:
    """Call `function(config, *arguments)` in a new process, which isolates crashes and global settings.

    In it, what is printed to stdout is discarded, and only errors are logged.

    Args:
        function: a module-level function.
        config: its first argument.
        arguments: its other arguments.
        preload: the paths of what the server of the processes imports first; by default those of the config.

    Returns:
        The result, or how the process died.

    Raises:
        ConfigError: the function raised it.
        Stopped: a signal arrived.
    """
    paths = preload_paths([config]) if preload is None else preload
    modules = ["hydrant.training.prepare.micro_batch", function.__module__, *paths]
    call = call_isolated(_call, (function, config, *arguments), preload=modules)
    if call.signum is not None:
        raise Stopped(128 + call.signum)
    if isinstance(call.result, ConfigError):
        raise call.result
    return call.result


def check_num_updates(config: Mapping[str, Any], num_updates: int) -> None:
    """Raise ConfigError if the config cannot run, or has fewer updates than `num_updates`.

    A process that dies raises no error here: it dies again in the measurement, which reports it.
    """
    run_isolated(_prepare, config, num_updates)


def _prepare(config: Mapping[str, Any], num_updates: int) -> None:
    from hydrant.training.prepare.micro_batch import prepare_at_least  # imports torch

    prepare_at_least(config, num_updates)  # its plan cannot be pickled


def _call(function: Callable[..., T], *arguments: Any) -> T | ConfigError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a model prints is no part of a report
    logging.disable(logging.WARNING)
    try:
        return function(*arguments)
    except ConfigError as error:
        return error
