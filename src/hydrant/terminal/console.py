"""Print to stdout: lines for people, data for programs. Print to stderr: notices. Lost output ends no run.

With `--json`, stdout has the answer of the command alone (terminal/answer.py); what else is printed goes to stderr.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import select
import shutil
import signal
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar, TextIO

from hydrant.files.redaction import public

_BOLD = re.compile(r"\x1b\[[01]m")


def say(text: str) -> None:
    """Print lines, without secrets. On a terminal, they are broken between words."""
    emit(_broken(public(text), sys.stdout))


def emit(text: str) -> None:
    """Print data for programs as it is."""
    print(text, flush=True)


def notice(text: str) -> None:
    """Print a line to stderr, without secrets. On a terminal, it is broken between words, and `error:` is red."""
    text = _broken(public(text), sys.stderr)
    if is_terminal(sys.stderr) and not os.environ.get("NO_COLOR"):
        text = re.sub(r"^((?:[\w ]+: )?)error: ", "\\1\x1b[1;31merror:\x1b[0m ", text)
    print(text, file=sys.stderr, flush=True)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def text_width() -> int:
    """Return the number of columns that a line on stdout may have: those of the terminal, if it is one."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else sys.maxsize


def _broken(text: str, stream: TextIO) -> str:
    """Return a text whose lines are broken between words to fit a terminal, with the indentation of each line."""
    if not is_terminal(stream):
        return text
    width, lines = shutil.get_terminal_size().columns, list[str]()
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        wrapper = textwrap.TextWrapper(width, "", indent, break_long_words=False, break_on_hyphens=False)
        lines += wrapper.wrap(line) if len(_BOLD.sub("", line)) > width else [line]
    return "\n".join(lines)


def begin_activity(name: str) -> None:
    """Show on stderr that this process starts, under this name; `show_activity` then shows what it does."""
    if isinstance(sys.stderr, _Output) and is_terminal(sys.stderr):
        sys.stderr.descriptor.activity_name = name
        show_activity("starting")


def show_activity(text: str) -> None:
    """Show on stderr what this process does now, if `begin_activity` was called. What is printed next replaces it."""
    if isinstance(sys.stderr, _Output) and (name := sys.stderr.descriptor.activity_name):
        print(f"{name}: {text}...", end="", file=sys.stderr, flush=True)
        _Descriptor.shows_activity = True


def clear_activity() -> None:
    """Remove what `show_activity` shows, because another process may print next."""
    if _Descriptor.shows_activity:
        _Descriptor.shows_activity = False
        with contextlib.suppress(OSError):
            os.write(2, b"\r\x1b[K")


def relative(path: Path) -> str:
    """Return a path relative to the current folder if it is in it, by its name or behind links, else as it is."""
    if path.is_absolute():
        for known in (path, Path(os.path.realpath(path))):  # where Path.resolve raises, for a loop
            if known.is_relative_to(Path.cwd()):
                return str(known.relative_to(Path.cwd()))
    return str(path)


@contextlib.contextmanager
def standard_streams() -> Generator[None]:
    """Make stdout and stderr of this process safe: text that cannot be written is discarded, and runs continue.

    Closed descriptors (`>&-`) are opened on /dev/null. Otherwise a file of a run could get their number, and the text
    that libraries write to it. Streams that have been replaced, as in a notebook, stay.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The new descriptor gets the lowest free number. Child processes inherit it, like any standard stream.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    previous = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__:
        sys.stdout = _Output(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _Output(2, sys.stderr)
    try:
        yield
    finally:
        clear_activity()
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = previous


@contextlib.contextmanager
def stdout_kept() -> Generator[TextIO]:
    """Yield stdout, and send what is printed meanwhile to stderr, also by libraries and by child processes."""
    stdout: Any = sys.stdout
    if not isinstance(stdout, _Output):  # in a notebook
        with contextlib.redirect_stdout(sys.stderr):
            yield stdout
        return
    stdout.flush()
    number = os.dup(1)
    os.dup2(2, 1)
    try:
        kept = _Output(number, stdout)
        yield kept
        kept.flush()
    finally:
        stdout.flush()
        os.dup2(number, 1)
        os.close(number)


def output_status(stream: TextIO | None = None) -> int:
    """Return the exit status of a command that prints its result: not 0 if stdout could not be written.

    Args:
        stream: where it printed, if that is not `sys.stdout`.
    """
    printed: TextIO = stream or sys.stdout
    printed.flush()
    error = printed.descriptor.error if isinstance(printed, _Output) else None
    if error is None:
        return 0
    if isinstance(error, BrokenPipeError):  # `| head`
        return 128 + signal.SIGPIPE
    notice(f"error: stdout cannot be written: {error.strerror}")
    return 1


class _Output(io.TextIOWrapper):
    """Replaces a standard stream, which is None if it was closed."""

    def __init__(self, number: int, stream: TextIO | None) -> None:
        self.descriptor = _Descriptor(number, "wb", closefd=False)
        settings: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "line_buffering": True}
        if isinstance(stream, io.TextIOWrapper):
            settings = {name: getattr(stream, name) for name in settings}
            settings["line_buffering"] |= stream.write_through  # python -u
            if stream.errors in ("strict", "surrogateescape"):  # the encoding may be ASCII
                settings["errors"] = _ESCAPES
        super().__init__(io.BufferedWriter(self.descriptor), **settings)


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write the bytes of a file's name as they are, and escape what the encoding of a stream lacks.

    The bytes 0x80 to 0x9f are escaped too: they control terminals of 8 bits.
    """
    assert isinstance(error, UnicodeEncodeError)
    error.end = error.start + 1  # what follows may need the other way
    is_byte = "\udca0" <= error.object[error.start] <= "\udcff"
    return codecs.lookup_error("surrogateescape" if is_byte else "backslashreplace")(error)


_ESCAPES = "hydrant.terminal.escape"
codecs.register_error(_ESCAPES, _escape)


class _Descriptor(io.FileIO):
    """Discards what cannot be written, because a pipe or a terminal is closed or a disk is full."""

    error: OSError | None = None  # the last one
    activity_name = ""  # in front of what `show_activity` shows
    shows_activity: ClassVar[bool] = False

    def write(self, data: Any) -> int:
        clear_activity()
        try:
            while (num_written := super().write(data)) is None:  # another program has made it non-blocking
                select.select([], [self], [])
            return num_written
        except OSError as error:
            self.error = error
            return len(data)
