"""Print to stdout: lines for people, data for programs. Print to stderr: notices. Lost output ends no run.

rich is imported only where there is a terminal. With `--json`, stdout has one JSON object, the command's
answer; an error, as such an object, and what else is printed go to stderr. `hydrant.records` has the records
of the answers. `VERSION` changes when a field changes its meaning or is removed; new fields do not change it.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import json
import logging
import math
import os
import re
import select
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from hydrant.errors import log
from hydrant.files.on_disk import json_safe
from hydrant.files.redaction import public, redacted
from hydrant.installation import entry_points
from hydrant.signals import urgent_text, urgent_texts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


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


_kept: list[TextIO] = []  # the stdout of a command whose output is for programs


@contextlib.contextmanager
def stdout_kept() -> Generator[None]:
    """Keep stdout for `emit_kept`, and send what is printed to stderr, also by libraries and by child processes."""
    stdout: Any = sys.stdout
    if not isinstance(stdout, _Output):  # in a notebook
        _kept.append(stdout)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            _kept.pop()
        return
    stdout.flush()
    number = os.dup(1)
    os.dup2(2, 1)
    _kept.append(_Output(number, stdout))
    try:
        yield
    finally:
        _kept.pop().flush()
        stdout.flush()
        os.dup2(number, 1)
        os.close(number)


def emit_kept(text: str) -> None:
    """Print data for programs to stdout, also where it is kept."""
    print(text, file=_kept[-1] if _kept else sys.stdout, flush=True)


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


_LABEL_WIDTH = 10
_PIPE_WIDTH = 10_000  # with FORCE_COLOR: no line is broken


def console() -> Console:
    """Return the console of stdout: one for each stream, so that a live display stays below what others print."""
    return _console_of(getattr(sys.stdout, "rich_proxied_file", sys.stdout))


def has_style(stream: TextIO) -> bool:
    """Return whether text on a stream may have colours: on a terminal, or if FORCE_COLOR is set."""
    return is_terminal(stream) or bool(os.environ.get("FORCE_COLOR"))


def log_fields(fields: Mapping[str, str]) -> None:
    """Log a line for each field, with its label in front."""
    for label, text in fields.items():
        log.info(f"%-{_LABEL_WIDTH}s  %s", label, text, extra={"field": (label, text)})


def say_fields(fields: Mapping[str, str]) -> None:
    """Print a line for each field, as `log_fields` does, but leave the log as it is."""
    for label, text in fields.items():
        say(f"{label:<{_LABEL_WIDTH}}  {text}")


class TerminalHandler(logging.Handler):
    """Logs to the console of stdout: warnings in colour, the text of a field beside its label."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
            label, _ = getattr(record, "field", ("", ""))
            console().print(_field(label, message) if label else _line(message, record.levelno))
        except Exception:
            self.handleError(record)


class Progress:
    """What shows how far something is, by the entry point `bar` of the group `hydrant.progress`; by itself, nothing.

    `start` takes the number of all updates or other units, and of those that are done.
    """

    @staticmethod
    def start(total: int, num_done: int, unit: str = "updates") -> Progress:
        bar = entry_points("hydrant.progress").get("bar")
        return bar.load()(total, num_done, unit) if bar else Progress()

    def advance(self, count: int = 1) -> None:
        """Count what was done."""

    def log(self, row: Mapping[str, float]) -> None:
        """Show numbers of a row."""

    def picture(self, path: Path) -> None:
        """Show a PNG."""

    def close(self) -> None:
        """Show the last state. May be called twice."""


def format_duration(seconds: float | None) -> str:
    """Return a duration as h:mm:ss, or m:ss below an hour.

    >>> format_duration(59.2), format_duration(3723), format_duration(200000), format_duration(None)
    ('1:00', '1:02:03', '55:33:20', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@functools.lru_cache(maxsize=1)
def _console_of(stream: TextIO) -> Console:
    from rich.console import Console

    width = None if is_terminal(stream) else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, force_jupyter=False)


def _line(message: str, level: int) -> RenderableType:
    from rich.text import Text

    return Text(message, style="yellow" if level >= logging.WARNING else "")


def _field(label: str, message: str) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_LABEL_WIDTH, style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(message[_LABEL_WIDTH + 2 :]))
    return grid


VERSION = 1
FLAG = "--json"


_asked: list[str] = []  # the command, if it was called with `--json`


@contextlib.contextmanager
def json_output(command: str) -> Generator[None]:
    """Let a command print JSON: `answer` on stdout, `say_error` on stderr; all other output goes to stderr."""
    with stdout_kept():
        _asked.append(command)
        urgent_texts.append(lambda signum: error_line(urgent_text(signum), 128 + signum))
        try:
            yield
        finally:
            urgent_texts.pop()
            _asked.pop()


def wants_json() -> bool:
    """Return whether the command was called with `--json`: then it calls `answer`, and no text needs to be made."""
    return bool(_asked)


def answer(content: Any) -> None:
    """Print the answer of a command that `wants_json`: a record, or a mapping with its fields."""
    from msgspec import to_builtins

    fields = to_builtins(content, enc_hook=_builtin)
    emit_kept(json_line({"version": VERSION, "command": _asked[-1], **fields}))


def _builtin(value: Any) -> Any:
    """Return a mapping, a text or a number of another class, such as torch's version or NumPy's, as one of Python's."""
    return {**value} if isinstance(value, Mapping) else str(value) if isinstance(value, str) else float(value)


def tell(text: str, content: Any, show: Callable[[str], None] = say) -> None:
    """Print what a command has come to: the content if it `wants_json`, else the text."""
    if wants_json():
        answer(content)
    elif text:
        show(text)


def answer_status() -> int:
    """Return the exit status of a command whose result is what it prints: not 0 if it could not be printed."""
    return output_status(_kept[-1] if _kept else None)


def say_error(message: str, exit_status: int, key: str = "", remedy: str = "") -> int:
    """Print why a command ends, as its last line on stderr; return the exit status.

    Args:
        key: the config key or the flag to change.
        remedy: what to do, the end of the message if that says it; "" if it is not known.
    """
    sys.stdout.flush()
    message = " ".join(message.split())
    if _asked:
        print(error_line(message, exit_status, key, " ".join(remedy.split())), file=sys.stderr, flush=True)
    else:
        notice(message if exit_status > 128 else f"error: {message}")
    return exit_status


def error_line(message: str, exit_status: int, key: str = "", remedy: str = "") -> str:
    """Return an error as JSON: what is wrong, and what to do; null if that is not known.

    >>> print(error_line("lr: has no value; write lr=1", 2, "lr", "write lr=1"))
    {"version": 1, "key": "lr", "message": "lr: has no value", "remedy": "write lr=1", "exit_status": 2}
    """
    reason = message.removesuffix(remedy).rstrip(" ;:.") if remedy else message
    reason = message if reason in ("", key) else reason  # a sentence that says only what to do
    fields = {"version": VERSION, "key": key, "message": reason, "remedy": remedy or None}
    return json_line({**fields, "exit_status": exit_status})


_SURROGATE = re.compile("[\ud800-\udfff]")


def json_line(content: Mapping[str, Any]) -> str:
    """Return a line of JSON in ASCII, without secrets. NaN and infinity are null; bytes that are no text are escaped.

    >>> print(json_line({"loss": float("nan"), "file": "caf\\udce9"}))
    {"loss": null, "file": "caf\\\\udce9"}
    """
    plain = redacted(json_safe(content))
    line = json.dumps(plain)
    if "\\ud" not in line:
        return line
    text = json.dumps(plain, ensure_ascii=False)  # not every reader accepts half of a surrogate pair
    return json.dumps(json.loads(_SURROGATE.sub(lambda half: f"\\\\u{ord(half[0]):x}", text)))
