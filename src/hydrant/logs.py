"""Where a run's messages go."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TextIO

from hydrant.errors import typed_line
from hydrant.redaction import redacted_text

log = logging.getLogger("hydrant")


class _Console(logging.StreamHandler[TextIO]):
    """The terminal. A reader that went away (`| head`) does not concern the run."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
        if not isinstance(sys.exception(), BrokenPipeError):
            super().handleError(record)


class _File(logging.FileHandler):
    """The log. A disk that is full is told once, and does not concern the run."""

    _is_told = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # it could not even be made
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_told:
            self._is_told = True
            print(f"{Path(self.baseFilename).name} cannot be written: {error.strerror}", file=sys.stderr)


class _Formatter(logging.Formatter):
    """Messages and tracebacks without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted_text(super().format(record))


@contextlib.contextmanager
def logging_to(file: Path, rank: int = 0) -> Generator[None]:
    """Messages go to the terminal; they and tracebacks go to `file`, which is made for the first message.

    Of other ranks than 0 both get only warnings, and `file` the tracebacks.
    """
    kept = _File(file, delay=True, encoding="utf-8")
    kept.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    console = _Console(sys.stdout)
    console.setLevel(logging.INFO)
    console.setFormatter(_Formatter("%(message)s"))
    if rank:
        kept.setFormatter(_Formatter(f"%(asctime)s %(levelname)s rank {rank}: %(message)s"))
        kept.addFilter(lambda record: record.levelno >= logging.WARNING or bool(record.exc_info))
        console = _Console(sys.stderr)
        console.setLevel(logging.WARNING)
        console.setFormatter(_Formatter(f"rank {rank}: %(message)s"))
    before = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(kept)
    log.addHandler(console)
    try:
        yield
    finally:
        log.removeHandler(console)
        log.removeHandler(kept)
        with contextlib.suppress(OSError):
            kept.close()
        log.propagate = before[1]
        log.setLevel(before[0])


@contextlib.contextmanager
def told(what: str) -> Generator[None]:
    """Nothing raised in here changes how a run ends; it is told."""
    try:
        yield
    except Exception as error:
        log.warning("%s: %s", what, typed_line(error))
        log.debug("%s failed", what, exc_info=error)
