"""The command line: `hydrant <command> ...`. An error is one line on stderr; with `--json`, it is JSON."""

import os
import pkgutil
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from hydrant.commands.registry import commands, help_of, overview
from hydrant.config.groups import own_words
from hydrant.errors import (
    ConfigError,
    HydrantError,
    OutOfMemory,
    is_in_user_code,
    log,
    suggestion,
    typed_line,
)
from hydrant.imports import paused_gc
from hydrant.installation import commit, entry_points, version
from hydrant.runs.log_setup import end_command, preserve_loggers, process_settings
from hydrant.signals import Stopped, signal_name
from hydrant.terminal import console


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end this process."""
    end_command(main(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. Restores what it sets in this process, which may be a notebook's."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    is_about_hydrant = arguments[:1] in (["help"], ["version"], ["--version"])
    if is_about_hydrant:
        arguments = [word for word in arguments if word != console.FLAG]
    wants_text = console.FLAG not in arguments or not {"-h", "--help"}.isdisjoint(arguments)
    output = nullcontext() if wants_text else console.json_output(arguments[0])
    with process_settings(), console.standard_streams(), output:
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit status; print its error."""
    try:
        Path.cwd()  # an error if it has been removed
        return _answer(arguments)
    except (KeyboardInterrupt, Stopped) as stop:
        status = stop.exit_status if isinstance(stop, Stopped) else 128 + signal.SIGINT
        return console.say_error(f"stopped by {signal_name(status - 128)}", status)
    except Exception as error:
        known = commands().get("".join(arguments[:1]))
        is_users = known is not None and known.runs_own_code and is_in_user_code(error)
        if shown := _shown_error(error, is_users=is_users):
            return console.say_error(str(shown), shown.exit_status, shown.key, shown.advice)
        if not console.wants_json():
            raise
        traceback.print_exc()
        return console.say_error(typed_line(error), 1)


def _shown_error(error: Exception, *, is_users: bool) -> HydrantError | None:
    """Return an error as one for the user; None for a fault, whose traceback is shown."""
    match error:
        case HydrantError():
            return error
        case MemoryError():
            return OutOfMemory("the memory of this machine, or what ulimit -v leaves of it, is full")
        case FileNotFoundError(filename=None):  # of the working folder
            return ConfigError("", "the working folder has been removed", remedy="change to another one")
        case RuntimeError(args=[str(text)]) if text.startswith(_LOOP):
            return ConfigError("", f"{text.removeprefix(_LOOP)} is a link to itself")
        case PermissionError(filename=str(name)) if not is_users:
            log.debug("%s may not be read", name, exc_info=error)
            remedy = "ask its owner, or give another path"
            return ConfigError("", f"{name}: {error.strerror}", remedy=remedy)
        case _:
            return None


_LOOP = "Symlink loop from "
"""What pathlib says of a link to itself, before Python 3.13."""


def _answer(arguments: Sequence[str]) -> int:
    """Run a command, or print what is asked about Hydrant."""
    match arguments:
        case ["help", *words]:
            return _answer([*words, "--help"])
        case [] | ["-h" | "--help", *_]:
            return _print(overview())
        case ["version"] | ["--version", *_]:
            return _print(f"hydrant {version()}" + (f" (commit {known})" if (known := commit()) else ""))
        case _:
            names = [word.lstrip("-").replace("-", "_") for word in arguments if word.startswith("-")]
            if flag := next(filter(None, map(entry_points("hydrant.flags").get, names)), None):
                return _print(flag.load()(arguments))
            return _call(*arguments)


def _call(command: str, *arguments: str) -> int:
    if "=" in command or command.startswith("-"):
        remedy = f": hydrant train {shlex.quote(command)}"
        raise ConfigError("", f"{command!r} comes after a command", about=command, remedy=remedy)
    if (known := commands().get(command)) is None:
        advice = own_words("hydrant", command, list(commands())) or suggestion(command, commands())
        raise ConfigError("", f"unknown command {command!r}", remedy=advice)
    if "-h" in arguments or "--help" in arguments:
        return _print(help_of(command))
    if "RANK" not in os.environ and "SLURM_STEP_ID" not in os.environ:  # else every rank would show it
        console.begin_activity(f"hydrant {command}")
    if known.runs_own_code:
        from hydrant.safety import trust

        if trust.allows_own_code(arguments):  # then Python finds the user's own parts
            trust.import_from_working_folder()
    with paused_gc():
        function = pkgutil.resolve_name(known.function)
    with preserve_loggers():
        status = function(list(arguments))
    return status if known.writes else status or console.answer_status()


def _print(text: str) -> int:
    print(text)
    return console.output_status()
