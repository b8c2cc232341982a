"""The settings that a call of Hydrant makes in its process, which may live on, such as a notebook."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
import time
from collections.abc import Generator
from contextvars import ContextVar
from typing import NoReturn

_INJECTED = ("LD_PRELOAD", "CUDA_INJECTION64_PATH")
"""Variables that load a profiler into the process, which may write its results when Python has ended."""


_began: ContextVar[float | None] = ContextVar("began", default=None)


def seconds_of_call() -> float | None:
    """Return how long the present call of Hydrant takes so far; None in a process that another one has started."""
    began = _began.get()
    return None if began is None else time.monotonic() - began


@contextlib.contextmanager
def process_settings() -> Generator[None]:
    """Set what a call needs, and restore this process's module search path and environment variables."""
    token = _began.set(time.monotonic())
    path, variables = sys.path.copy(), os.environ.copy()
    # torch reads it at import. By default, OpenMP's idle threads spin, which makes small models ten times slower as
    # soon as other processes need the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Triton 3.9 warns where it is not set. 1 is what all versions so far do: a product and a sum are rounded once.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    # Processes that are started as `python -c` and `python -m`, by multiprocessing and torch, would import from the
    # working folder first.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        yield
    finally:
        _began.reset(token)
        sys.path[:] = path
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)


def end_command(status: int) -> NoReturn:
    """End this process after its threads and exit handlers, as multiprocessing ends its own. Python's finalization,
    which takes half a second once torch is imported, is skipped.
    """
    if _returns_to_a_caller() or any(os.environ.get(name) for name in _INJECTED):
        sys.exit(status)
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  # waits for those that are no daemons
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    _flush_files()
    os._exit(status)


def _returns_to_a_caller() -> bool:
    """Return whether other code runs after the command: `python -i`, or `-m cProfile`, which then writes its results.

    In a process of its own, the outermost code is that of the module `__main__`.
    """
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None:
        frame = frame.f_back
    is_main = frame.f_globals.get("__name__") == "__main__"
    return not is_main or bool(sys.flags.interactive or sys.flags.inspect)


def _flush_files() -> None:
    """Flush the files that are still open, such as the user's, as the end of Python does."""
    for thing in gc.get_objects():
        if issubclass(type(thing), io.IOBase):
            with contextlib.suppress(OSError, ValueError):  # the file is closed, or a pipe has no reader
                thing.flush()
