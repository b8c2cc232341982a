"""The loggers of a process, and the log of a run: the terminal and train.log.

The settings that a call of Hydrant makes in its process, which may live on, such as a notebook.
"""

import atexit
import contextlib
import errno
import gc
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Generator
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

from hydrant.errors import log
from hydrant.files.redaction import public
from hydrant.terminal.console import TerminalHandler, has_style, notice


class _File(logging.FileHandler):
    """Logs to a file. A full disk is reported once, and the run continues."""

    _is_reported = False

    def __init__(self, file: Path) -> None:
        self._is_new = not file.exists()
        super().__init__(file, delay=True, encoding="utf-8")

    def discard(self) -> None:
        """Remove the file, unless it was there before, and write no more."""
        self.addFilter(lambda _: False)
        if self._is_new:
            with contextlib.suppress(OSError):
                Path(self.baseFilename).unlink()

    def _open(self) -> io.TextIOWrapper:
        path = Path(self.baseFilename)
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no file")  # opening a pipe would wait for its reader
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file could not be created
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_reported:
            self._is_reported = True
            notice(f"{Path(self.baseFilename).name} cannot be written: {error.strerror}")


class _Formatter(logging.Formatter):
    """Removes secrets and control characters from messages and tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return public(super().format(record))


@contextlib.contextmanager
def preserve_loggers() -> Generator[None]:
    """Restore what a config may set for all loggers, such as `hydra.job_logging.disable_existing_loggers`."""
    known = [x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger)]
    before = [(x, x.level, x.disabled, x.propagate, x.handlers.copy()) for x in (logging.root, *known)]
    threshold = logging.root.manager.disable
    try:
        yield
    finally:
        logging.disable(threshold)
        for logger, level, disabled, propagate, handlers in before:
            if logger.level != level:
                logger.setLevel(level)  # clears a cache of every logger there is
            for added in set(logger.handlers).difference(handlers):
                added.close()
            logger.disabled, logger.propagate, logger.handlers = disabled, propagate, handlers


current_log: ContextVar[Path | None] = ContextVar("log", default=None)
"""The log of the run at work, where one process trains several runs at once; None: messages are for every log."""


@contextlib.contextmanager
def log_to(file: Path, rank: int = 0) -> Generator[None]:
    """Log messages to the terminal, and messages with tracebacks to `file`, which the first message creates.

    Ranks other than 0 log only warnings, and what has a traceback to `file`. The handlers are removed at the end.
    """
    with log_to_terminal(rank), log_to_file(file, rank):
        yield


@contextlib.contextmanager
def log_to_terminal(rank: int = 0) -> Generator[None]:
    """Log messages to the terminal, on ranks other than 0 only warnings."""
    is_styled = rank == 0 and has_style(sys.stdout)
    console = TerminalHandler() if is_styled else logging.StreamHandler(sys.stderr if rank else sys.stdout)
    console.setLevel(logging.WARNING if rank else logging.INFO)
    console.setFormatter(_Formatter(_message(rank)))
    level, propagate = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(console)
    try:
        yield
    finally:
        log.removeHandler(console)
        log.propagate = propagate
        log.setLevel(level)


@contextlib.contextmanager
def log_to_file(file: Path, rank: int = 0) -> Generator[None]:
    """Log messages with tracebacks to `file`: those for this log, and those for every log."""
    handler = _File(file)
    handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s {_message(rank)}"))
    if rank:
        handler.addFilter(lambda record: record.levelno >= logging.WARNING or bool(record.exc_info))
    _files.add(file, handler)
    try:
        yield
    finally:
        _files.remove(file)
        with contextlib.suppress(OSError):
            handler.close()


class _Files(logging.Handler):
    """Gives a message to the log of the run at work, or to all logs, without asking each of them."""

    def __init__(self) -> None:
        super().__init__()
        self._by_path: dict[Path, _File] = {}

    def add(self, file: Path, handler: _File) -> None:
        self._by_path[file] = handler
        log.addHandler(self)  # once

    def remove(self, file: Path) -> None:
        del self._by_path[file]
        if not self._by_path:
            log.removeHandler(self)

    def discard(self, file: Path) -> None:
        if file in self._by_path:
            self._by_path[file].discard()

    def handle(self, record: logging.LogRecord) -> bool:
        current = current_log.get()
        files = self._by_path if current is None else [current]
        for file in [file for file in files if file in self._by_path]:
            self._by_path[file].handle(record)
        return True


_files = _Files()


def discard_log(file: Path) -> None:
    """Remove the log of a run that was refused: nothing was started. A log of an earlier start stays."""
    _files.discard(file)


def _message(rank: int) -> str:
    return f"rank {rank}: %(message)s" if rank else "%(message)s"


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
    gc.disable()  # a last collection would scan the objects of all imports for nothing
    threading._shutdown()  # pyrefly: ignore[missing-attribute]  # waits for those that are no daemons
    atexit._run_exitfuncs()
    _flush_files()
    os._exit(status)


def _returns_to_a_caller() -> bool:
    """Return whether other code runs after the command: `python -i`, or `-m cProfile`, which then writes its results.

    In a process of its own, the outermost code is that of the module `__main__`.
    """
    frame = sys._getframe()
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
