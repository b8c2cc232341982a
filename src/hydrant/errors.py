"""The exceptions whose messages are for the user, and what error messages are made of.

HydrantError                 the message says what was given, what was needed and how to correct it
├── ConfigError              the config or the command line is wrong; nothing was started      (exit 2)
│   └── FolderInUse          another process is at work in the folder                          (exit 2)
├── DataError                a sample or a file of the data set cannot be read                 (exit 1)
├── OutOfMemory              the memory of the device or of the machine is too small           (exit 1)
├── CheckpointError          a checkpoint is missing, damaged or belongs to another run        (exit 1)
├── RecordError              a file of a run folder is damaged                                 (exit 1)
├── FolderLost               the folder of a run was removed or replaced while it trained      (exit 1)
├── NonFiniteError           the loss or a gradient became NaN or infinite                     (exit 1)
├── CompileError             a task cannot be compiled, or is compiled too often               (exit 1)
│   └── CompileMismatch      the compiled task gives other results than the eager task         (exit 1)
├── RankDied                 a rank has ended or never came, so the others cannot reach it     (exit 1)
├── RankHung                 a rank hangs, and so do the ranks that wait for it                (exit 1)
├── JobFailed                a job of a sweep failed; raised in the sweep's process            (exit 1)
└── Interrupted              a signal stopped the run; its state is saved           (exit 128 + signal)
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import logging
import os
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from hydrant.signals import signal_name

log = logging.getLogger("hydrant")
"""The log of a run, which the terminal and train.log show."""


class HydrantError(Exception):
    """Base of every error whose message is for the user: a record, of which the message is made.

    >>> print(HydrantError("has no value", remedy="write lr=1"), HydrantError("predict what?", remedy="Give a run"))
    has no value; write lr=1 predict what? Give a run

    Args:
        reason: what is wrong, and with what.
        remedy: what to do, with which the message ends, behind "; ", or ". " before a capital letter; it may begin
            with another of these joints. No part of it is a name that is not in quotes, unless the code chose it.
    """

    exit_status = 1
    key = ""
    needs = ""

    def __init__(self, reason: str, *, remedy: str = "") -> None:
        joint = next((joint for joint in _JOINTS if remedy.startswith(joint)), "")
        self.reason, self.remedy = reason, remedy.removeprefix(joint)
        joint = joint or (" " if reason.endswith("?") else ". " if remedy[:1].isupper() else "; ")
        super().__init__(f"{reason}{joint}{self.remedy}" if remedy else reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)  # it is sent between processes

    @property
    def advice(self) -> str:
        """What to do: the remedy, else to give what the key needs; "" if neither is known."""
        return self.remedy or (f"give {self.needs}" if self.needs else "")


_JOINTS = ("; ", ". ", ": ")


def _rebuild(kind: type[HydrantError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> HydrantError:
    """Build an error without its `__init__`, because that takes other arguments than `args`."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


def recorded_error(type_name: str, message: str, exit_status: int) -> HydrantError:
    """Return the error that another process has recorded by the name of its type.

    >>> recorded_error("DataError", "img.png cannot be read", 1)
    DataError('img.png cannot be read')
    """
    kind = globals().get(type_name)
    known = kind if isinstance(kind, type) and issubclass(kind, HydrantError) else HydrantError
    return _rebuild(known, (message,), {"exit_status": exit_status, "reason": message, "remedy": ""})


class ConfigError(HydrantError):
    """The config or the command line is wrong.

    >>> print(ConfigError("lr", needs="a number above 0", got=None))
    lr: needs a number above 0, not null

    Args:
        key: the config key to change, with which the message begins; `""` if it is not a single one.
        reason: what is wrong; without it, `needs` and `got` say it, or the remedy alone.
        needs: what the key needs.
        got: what it has.
        about: the key, or the flag, if the message does not begin with it.
    """

    exit_status = 2

    def __init__(
        self,
        key: str,
        reason: str = "",
        *,
        needs: str = "",
        got: object = ...,
        remedy: str = "",
        about: str = "",
    ) -> None:
        if needs and not reason:
            reason = f"needs {needs}" + ("" if got is ... else f", not {shown(got)}")
        text = f"{key}: {reason}" if key and reason else key or reason
        super().__init__(text, remedy=remedy if reason else f": {remedy}")
        self.reason, self.needs, self.key = reason, needs, key or about

    def at(self, key: str, more: str = "") -> ConfigError:
        """Return this error as that of another key, with more about the reason."""
        return ConfigError(key, self.reason + more, needs=self.needs, remedy=self.remedy)


class FolderInUse(ConfigError):
    """Another process is at work in the folder."""


class DataError(HydrantError):
    """A sample or a file of the data set cannot be read."""


class OutOfMemory(HydrantError):
    """The memory of the device or of the machine is too small."""


class CheckpointError(HydrantError):
    """A checkpoint is missing, damaged or belongs to another run."""


class RecordError(HydrantError):
    """A file of a run folder is damaged."""


class FolderLost(HydrantError):
    """The folder of a run was removed or replaced while it trained, or another machine took it over."""


class NonFiniteError(HydrantError):
    """The loss, a gradient or a parameter became NaN or infinite since the last log point."""

    def __init__(
        self, metric: str, first_update: int, last_update: int, more: str = "", cause: str | None = None
    ) -> None:
        is_one = first_update == last_update
        when = f"at update {last_update}" if is_one else f"between updates {first_update} and {last_update}"
        remedy = "Lower optimizer.lr, lengthen scheduler.warmup, set max_grad_norm, or use precision=fp32."
        message = f"{metric} became NaN or infinite {when}{more}"
        message, remedy = (message, remedy) if cause is None else (f"{message}. {cause}.", "")
        super().__init__(message, remedy=remedy)

    @classmethod
    def after_skips(cls, num_updates: int, max_skipped: int, has_overflowed: bool) -> NonFiniteError:
        """Return the error for more than `max_skipped` skips in a row.

        With overflows these are attempts at one update; otherwise they are updates.
        """
        first = num_updates if has_overflowed else num_updates - max_skipped
        name = "a scaled gradient" if has_overflowed else "the loss or a gradient"
        return cls(name, first, num_updates + 1, f"; more in a row than max_skipped={max_skipped}")


class CompileError(HydrantError):
    """A task cannot be compiled, or is compiled too often."""


class CompileMismatch(CompileError):
    """A compiled task gives other results than the eager task."""


class RankDied(HydrantError):
    """A rank has ended without a result, or never came, so the others cannot reach it."""


class RankHung(HydrantError):
    """A rank hangs, and so do the ranks that wait for it."""


class JobFailed(HydrantError):
    """A job of a sweep failed."""


class Interrupted(HydrantError):
    """A signal stopped the run after an update; its state is saved. The exit status is 128 + the signal."""

    def __init__(self, signum: int, num_updates: int) -> None:
        super().__init__(f"stopped by {signal_name(signum)} after update {num_updates}")
        self.exit_status = 128 + signum


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message without its full stop; the type of the error if it has no message.

    >>> first_line(ValueError("no such file\\nin any folder")), first_line(KeyError())
    ('no such file', 'KeyError')
    >>> try: b"price:\\n3 \\xa3".decode()
    ... except ValueError as error: first_line(error)
    'line 2 is no text in UTF-8 (byte 0xa3); save the file in UTF-8'
    """
    if isinstance(error, UnicodeDecodeError):
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        return f"line {line} is no text in UTF-8 (byte 0x{byte:02x}); save the file in UTF-8"
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def typed_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message.

    >>> typed_line(ValueError("negative")), typed_line(ValueError())
    ('ValueError: negative', 'ValueError')
    """
    line, name = first_line(error), type(error).__name__
    return line if line == name else f"{name}: {line}"


def concerns(error: OSError, folder: Path) -> bool:
    """Return whether an OSError is about a folder: the folder, a file in it or one of its parents.

    >>> folder = Path("outputs", "run")
    >>> concerns(PermissionError(13, "Permission denied", "outputs"), folder)
    True
    >>> concerns(FileNotFoundError(2, "No such file or directory", "squeue"), folder)
    False
    """
    if not isinstance(error.filename, str):
        return False
    file, folder = Path(error.filename).absolute(), folder.absolute()
    return file.is_relative_to(folder) or folder.is_relative_to(file)


@contextlib.contextmanager
def naming(file: Path) -> Generator[None]:
    """Let an OSError of this block name the file: those of writing, flushing and closing name none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # else its text would be lost
            error.filename = error.filename or str(file)
        raise


def why_no_folder(path: Path, error: OSError) -> str:
    """Return what prevents a folder: the start of a message, which begins with the path that is in the way."""
    for place in (path, *path.parents):
        exists = os.path.exists(place)  # noqa: PTH110  # Path.exists raises for a name that is too long
        if not exists and os.path.islink(place):  # noqa: PTH114
            return f"{place} is a link to {os.readlink(place)}, which does not exist"  # noqa: PTH115
        if exists and not place.is_dir():
            return f"{place} is a file, and a folder is needed"
    verb = "written" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "made"
    return f"{path} cannot be {verb} ({error.strerror or error})"


def location(error: BaseException) -> str:
    """Return `file:line` of the innermost frame of an error that is not in an installed package."""
    frames = traceback.extract_tb(error.__traceback__)
    file, line = innermost((frame.filename, frame.lineno) for frame in frames)
    return f"{Path(file).name}:{line}"


_LIBRARIES = ("site-packages", "dist-packages", "<", sysconfig.get_path("stdlib"))
_PACKAGE = f"{Path(__file__).parent}{os.sep}"


def innermost(frames: Iterable[tuple[str, int | None]]) -> tuple[str, int | None]:
    """Return the innermost of these frames (file, line), outermost first: in user code, else in Hydrant, else any."""
    stack = list(frames)
    hydrant = [frame for frame in stack if frame[0].startswith(_PACKAGE)]
    user = [frame for frame in stack if is_users_file(frame[0])]
    return (user or hydrant or stack or [("unknown", None)])[-1]


def is_users_file(file: str) -> bool:
    """Return whether a file of a traceback is neither Hydrant's nor in an installed package.

    >>> is_users_file(__file__), is_users_file(f"{Path(__file__).parent}_mine/model.py")
    (False, True)
    """
    return not file.startswith(_PACKAGE) and not any(part in file for part in _LIBRARIES)


def is_in_user_code(error: BaseException) -> bool:
    """Return whether an error was raised in user code, or in what it called."""
    return any(is_users_file(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def traced(error: BaseException) -> str:
    """Return the typed line of an error with its place, `file:line`. For user code, also the code of the line and the
    file of the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = innermost((frame.filename, frame.lineno) for frame in frames)
    line = next((frame.line for frame in frames if (frame.filename, frame.lineno) == inner), "")
    place = location(error)
    if line and is_users_file(inner[0]):
        file = _save_traceback(error)
        place += f": {line}" + (f"; {file} has the traceback" if file else "")
    return f"{typed_line(error)} (at {place})"


def _save_traceback(error: BaseException) -> Path | None:
    """Add the traceback of an error to this process's file of them; return its path, None if it cannot be written."""
    try:
        with (path := _traceback_file()).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return None
    return path


@cache
def _traceback_file() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="hydrant_traceback_", suffix=".txt")
    os.close(descriptor)
    return Path(name)


def shown(value: Any) -> str:
    """Return a value as it is written in a config.

    >>> shown(None), shown([True, "a", 0.5]), shown({"lr": 0.1})
    ('null', "[true, 'a', 0.5]", '{lr: 0.1}')
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{', '.join(map(shown, value))}]"
        case dict():
            return f"{{{', '.join(f'{name}: {shown(item)}' for name, item in value.items())}}}"
        case _:
            return repr(value)


def quoted(name: object) -> str:
    """Return a name as a remedy has it: in quotes, unless it is one plain word.

    >>> quoted("runs/lr=0.1"), quoted("lr; run curl")
    ('runs/lr=0.1', "'lr; run curl'")
    """
    text = str(name)
    is_plain = all(letter.isalnum() or letter in _IN_WORDS for letter in text)
    return text if text and is_plain else repr(text)


_IN_WORDS = "_@%+=,./-~^[]{}<>*:"


def first_few(names: Sequence[str], limit: int = 3, noun: str = "") -> str:
    """Return the first names, and the number of the others.

    >>> first_few(["a", "b", "c"], 2, " groups"), first_few(["a", "b", "c"])
    ('a, b and 1 more groups', 'a, b, c')
    """
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more{noun}" if more > 0 else "")


@contextlib.contextmanager
def log_errors(subject: str) -> Generator[None]:
    """Log an exception of this block as a warning about `subject` instead of raising it."""
    try:
        yield
    except Exception as error:
        log.warning("%s: %s", subject, typed_line(error))
        log.debug("%s failed", subject, exc_info=error)


@contextlib.contextmanager
def prefix_error_keys(prefix: str, settings: Mapping[str, Any] | None = None) -> Generator[None]:
    """Put `prefix`, such as `optimizers.critic.`, before the key of a ConfigError about one of these settings, or any.

    Raises:
        ConfigError: the one raised inside, with the longer key.
    """
    try:
        yield
    except ConfigError as error:
        if settings is None or error.key.partition(".")[0] in settings:
            raise error.at(f"{prefix}{error.key}") from error
        raise


def nearest(name: str, options: Iterable[str]) -> list[str]:
    """Return up to three options that are similar to `name`, the best first. Case, `-` and `_` are ignored.

    >>> nearest("AdamW", ["adamw", "adam", "sgd"])
    ['adamw', 'adam']
    """
    normalized = {_normalize(option): option for option in options}
    return [normalized[close] for close in difflib.get_close_matches(_normalize(name), list(normalized))]


def _normalize(name: str) -> str:
    return name.lower().replace("-", "_")


_MAX_LISTED = 50  # options in a message
_MAX_BESIDE = 10_000  # names that are read in a folder


def suggestion(name: str, options: Iterable[str], noun: str = "Options") -> str:
    """Return the end of a message about an unknown name: the nearest options, and all of them if they are few.

    >>> suggestion("rellu", ["relu", "tanh"])
    "; did you mean 'relu'? Options: relu, tanh"
    """
    options = sorted(set(options))
    close = nearest(name, options)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    if not options:
        return hint.removesuffix(".")
    if len(options) > _MAX_LISTED:
        return f"{hint} There are {len(options)} {noun.lower()}"
    joint = " " if noun.endswith((" has", " have")) else ": "
    return f"{hint} {noun}{joint}{', '.join(map(quoted, options))}"


def near_folders(path: Path, is_meant: Callable[[Path], bool] = Path.is_dir) -> str:
    """Return the end of a message about a folder that does not exist: the folders beside it that may be meant.

    The folder of a job begins with what tables call the job: `seed=0` is in `seed-0_model-mlp`.
    """
    names = _names_beside(path, is_meant)
    slug = path.name.replace("=", "-").replace(" ", "_")
    if begun := [name for name in names if slug and name.startswith(slug)]:
        return f"; did you mean {quoted(path.parent / begun[0])}?"
    if path.parent == Path():  # the working folder holds much else
        names = nearest(path.name, names)
    return suggestion(path.name, names, f"Folders in {quoted(path.parent)}") if names else ""


def no_file(key: str, path: Path) -> ConfigError:
    """Return the error for a file that does not exist, with a similar one beside it."""
    close = nearest(path.name, _names_beside(path, Path.is_file))[:1]
    hint = f"did you mean {quoted(path.parent / close[0])}?" if close else ""
    return ConfigError(key, f"there is no file {path}", remedy=hint)


def _names_beside(path: Path, is_meant: Callable[[Path], bool]) -> list[str]:
    """Return the names beside a path that are not hidden, in order; none if its folder cannot be read."""
    try:
        return sorted(p.name for p in islice(path.parent.glob("[!.]*"), _MAX_BESIDE) if is_meant(p))
    except OSError:
        return []


def unknown_name(key: str, kind: str, name: str, options: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not among the options.

    >>> print(unknown_name("model.name", "activation", "rellu", ["relu", "tanh"]))
    model.name: unknown activation 'rellu'; did you mean 'relu'? Options: relu, tanh
    """
    return ConfigError(key, f"unknown {kind} {name!r}", remedy=suggestion(name, options))


def check_known(
    key: str, kind: str, name: str, options: Collection[str], listed: Collection[str] = ()
) -> None:
    """Raise a ConfigError if a name is none of the options. `listed`: those that the message names; by default all."""
    if name not in options:
        raise unknown_name(key, kind, f"{name}", listed or options)  # code may give a name that is no text
