"""Where an error of user code was raised. Before a run has a log, its traceback goes into a temporary file."""

import os
import tempfile
import traceback
from functools import cache
from pathlib import Path

from hydrant.errors import innermost, is_users_file, location


def is_in_user_code(error: BaseException) -> bool:
    """Return whether an error was raised in user code, or in what it called."""
    return any(is_users_file(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def place(error: BaseException) -> str:
    """Return the place of an error: `file:line`. For user code, also the code of the line and the file of the
    traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = innermost((frame.filename, frame.lineno) for frame in frames)
    line = next((frame.line for frame in frames if (frame.filename, frame.lineno) == inner), "")
    if not (line and is_users_file(inner[0])):
        return location(error)
    file = _save_traceback(error)
    return f"{location(error)}: {line}" + (f"; {file} has the traceback" if file else "")


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
