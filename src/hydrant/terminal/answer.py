"""What a command prints for programs, with `--json`: its answer on stdout, an error on stderr; each is one JSON object.

`hydrant.commands.answers` has the schema of each command's answer. `VERSION` changes when a field changes its meaning
or is removed; new fields do not change it.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from hydrant.errors import ConfigError
from hydrant.files.atomic_write import json_safe
from hydrant.files.redaction import redacted
from hydrant.signals import urgent_text, urgent_texts
from hydrant.terminal.console import notice, output_status, say, stdout_kept

VERSION = 1
FLAG = "--json"


@dataclass
class _Asked:
    """A command that was called with `--json`."""

    command: str
    stdout: TextIO


_asked: list[_Asked] = []  # one, if this process runs such a command


@contextlib.contextmanager
def json_output(command: str) -> Generator[None]:
    """Let a command print JSON: `answer` on stdout, `say_error` on stderr; all other output goes to stderr."""
    with stdout_kept() as stdout:
        _asked.append(_Asked(command, stdout))
        urgent_texts.append(lambda signum: error_line(urgent_text(signum), 128 + signum))
        try:
            yield
        finally:
            urgent_texts.pop()
            _asked.pop()


def wants_json() -> bool:
    """Return whether the command was called with `--json`: then it calls `answer`, and no text needs to be made."""
    return bool(_asked)


def answer(content: Mapping[str, Any]) -> None:
    """Print the answer of a command that `wants_json`."""
    asked = _asked[-1]
    print(json_line({"version": VERSION, "command": asked.command, **content}), file=asked.stdout, flush=True)


def tell(text: str, content: Mapping[str, Any], show: Callable[[str], None] = say) -> None:
    """Print what a command has come to: the content if it `wants_json`, else the text."""
    if wants_json():
        answer(content)
    elif text:
        show(text)


def answer_status() -> int:
    """Return the exit status of a command whose result is what it prints: not 0 if it could not be printed."""
    return output_status(_asked[-1].stdout if _asked else None)


def say_error(message: str, exit_status: int, key: str = "", remedy: str = "") -> int:
    """Print why a command ends, as its last line on stderr; return the exit status.

    Args:
        key: the config key or the flag to change.
        remedy: what to do, the end of the message; "" if the message does not say it.
    """
    sys.stdout.flush()
    message = " ".join(message.split())
    if _asked:
        print(error_line(message, exit_status, key, " ".join(remedy.split())), file=sys.stderr, flush=True)
    else:
        notice(message if exit_status > 128 else f"error: {message}")
    return exit_status


_NEEDED = re.compile(
    r"(?:needs|must be(?= (?:an?|one of|from|\d)\b)) ([^;:]+?)(?:, (?:not|but|because|which) | \(|[;:]|$)"
    r"|but (an? [^;:]+) is needed"
)


def error_line(message: str, exit_status: int, key: str = "", remedy: str = "") -> str:
    """Return an error as JSON: what is wrong, and what to do, if only what is needed; null if that is not known.

    >>> print(error_line("lr: has no value; write lr=1", 2, "lr", "write lr=1"))
    {"version": 1, "key": "lr", "message": "lr: has no value", "remedy": "write lr=1", "exit_status": 2}
    """
    reason = message.removesuffix(remedy).rstrip(" ;:.") if remedy else message
    reason = message if reason in ("", key) else reason  # a sentence that says only what to do
    if not remedy and (needed := _NEEDED.search(message)):
        remedy = f"give {needed[1] or needed[2]}"
    return json_line({"version": VERSION, "key": key, "message": reason, "remedy": remedy or None,
                      "exit_status": exit_status})  # fmt: skip


def key_of(error: BaseException | None) -> str:
    """Return the config key or the flag that an error is about; "" if it is not a single one."""
    return error.key if isinstance(error, ConfigError) else ""


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
