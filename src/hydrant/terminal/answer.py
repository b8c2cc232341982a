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
        try:
            yield
        finally:
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
        remedy: what to do, the end of the message; see `divided`.
    """
    sys.stdout.flush()
    message = " ".join(message.split())
    if _asked:
        reason, remedy = divided(message, " ".join(remedy.split()))
        fields = {"key": key, "message": reason, "remedy": remedy, "exit_status": exit_status}
        print(json_line({"version": VERSION, **fields}), file=sys.stderr, flush=True)
    else:
        notice(message if exit_status > 128 else f"error: {message}")
    return exit_status


def key_of(error: BaseException | None) -> str:
    """Return the config key or the flag that an error is about; "" if it is not a single one."""
    return error.key if isinstance(error, ConfigError) else ""


def divided(message: str, remedy: str = "") -> tuple[str, str]:
    """Return what is wrong and what to do, which are the parts of a message; "" if it does not say what to do.

    Args:
        remedy: the second part, where it is not what follows the last `; ` or `. `.

    >>> divided("unknown option 'adamv'; did you mean 'adamw'?")
    ("unknown option 'adamv'", "did you mean 'adamw'?")
    >>> divided("train/loss became NaN at update 3. Lower optimizer.lr.")
    ('train/loss became NaN at update 3', 'Lower optimizer.lr.')
    >>> divided("predict what? Give a run; or a checkpoint", "Give a run; or a checkpoint")
    ('predict what?', 'Give a run; or a checkpoint')
    """
    if remedy and message.endswith(remedy):
        return message.removesuffix(remedy).rstrip(" ;:"), remedy
    reason, _, remedy = message.rpartition("; ")
    if not reason:
        reason, _, remedy = message.rpartition(". ")
    return (reason, remedy) if reason else (message, "")


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
