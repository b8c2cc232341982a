"""The loggers of a process, and the log of a run: the terminal and train.log."""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from collections.abc import Generator
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


@contextlib.contextmanager
def log_to(file: Path, rank: int = 0) -> Generator[None]:
    """Log messages to the terminal, and messages with tracebacks to `file`, which the first message creates.

    Ranks other than 0 log only warnings, and what has a traceback to `file`. The handlers are removed at the end.
    """
    message = f"rank {rank}: %(message)s" if rank else "%(message)s"
    file_handler = _File(file, delay=True, encoding="utf-8")
    file_handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s {message}"))
    console = _console_handler(rank)
    console.setLevel(logging.WARNING if rank else logging.INFO)
    console.setFormatter(_Formatter(message))
    if rank:
        file_handler.addFilter(lambda record: record.levelno >= logging.WARNING or bool(record.exc_info))
    level, propagate = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(file_handler)
    log.addHandler(console)
    try:
        yield
    finally:
        log.removeHandler(console)
        log.removeHandler(file_handler)
        with contextlib.suppress(OSError):
            file_handler.close()
        log.propagate = propagate
        log.setLevel(level)
