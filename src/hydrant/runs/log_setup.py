"""The loggers of a process, and the log of a run: the terminal and train.log."""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from collections.abc import Generator
from contextvars import ContextVar
from io import TextIOWrapper
from pathlib import Path

from hydrant.runs.console import notice, public
from hydrant.runs.terminal import TerminalHandler, has_style

log = logging.getLogger("hydrant")


class _File(logging.FileHandler):
    """Logs to a file. A full disk is reported once, and the run continues."""

    _is_reported = False

    def _open(self) -> TextIOWrapper:
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


def _console_handler(rank: int) -> logging.Handler:
    if rank:
        return logging.StreamHandler(sys.stderr)
    return TerminalHandler() if has_style(sys.stdout) else logging.StreamHandler(sys.stdout)


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
            logger.setLevel(level)
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
    console = _console_handler(rank)
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
    handler = _File(file, delay=True, encoding="utf-8")
    handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s {_message(rank)}"))
    handler.addFilter(lambda record: current_log.get() in (None, file))
    if rank:
        handler.addFilter(lambda record: record.levelno >= logging.WARNING or bool(record.exc_info))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def _message(rank: int) -> str:
    return f"rank {rank}: %(message)s" if rank else "%(message)s"
