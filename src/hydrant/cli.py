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

from hydrant.commands.help import flags_of, help_of, overview
from hydrant.commands.registry import RETIRED, commands
from hydrant.errors import (
    ConfigError,
    HydrantError,
    OutOfMemory,
    is_in_user_code,
    log,
    typed_line,
    unknown_name,
)
from hydrant.imports import paused_gc
from hydrant.runs.log_setup import end_command, process_settings
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
        _check_working_folder()
        arguments = _spelt_as_flags(arguments)
        if "-sc" in arguments or "--shell-completion" in arguments:
            return _complete(arguments)
        if not arguments or arguments[0] in ("-h", "--help"):
            return _print(overview())
        if arguments[0] == "--version":
            from hydrant.installation import commit, version

            return _print(f"hydrant {version()}" + (f" (commit {known})" if (known := commit()) else ""))
        return _call(*arguments)
    except HydrantError as error:
        return _report(error)
    except KeyboardInterrupt:
        return console.say_error("stopped by SIGINT", 128 + signal.SIGINT)
    except Stopped as request:
        return console.say_error(f"stopped by {signal_name(request.exit_status - 128)}", request.exit_status)
    except MemoryError:
        return _report(OutOfMemory("the memory of this machine, or what ulimit -v leaves of it, is full"))
    except Exception as error:
        # By pathlib, before Python 3.13.
        if (link := str(error).removeprefix("Symlink loop from ")) != str(error):
            return _report(ConfigError("", f"{link} is a link to itself"))
        runs_own_code = arguments[0] in commands() and commands()[arguments[0]].runs_own_code
        is_own = not (runs_own_code and is_in_user_code(error))
        if is_own and isinstance(error, PermissionError) and isinstance(error.filename, str):
            log.debug("%s may not read a path", arguments[0], exc_info=error)
            reason = f"{error.filename}: {error.strerror}"
            return _report(ConfigError("", reason, remedy="ask its owner, or give another path"))
        if not console.wants_json():
            raise
        traceback.print_exc()
        return console.say_error(typed_line(error), 1)


def _spelt_as_flags(arguments: list[str]) -> list[str]:
    """Return the arguments with a flag for the words `help` and `version`: `help train` is `train --help`."""
    match arguments:
        case ["help", *words]:
            return [*words, "--help"]
        case ["version"]:
            return ["--version"]
        case _:
            return arguments


def _call(command: str, *arguments: str) -> int:
    if "=" in command or command.startswith("-"):
        remedy = f": hydrant train {shlex.quote(command)}"
        raise ConfigError("", f"{command!r} comes after a command", about=command, remedy=remedy)
    if command in RETIRED:
        raise ConfigError("", f"the command {command} is retired: {RETIRED[command]}")
    if (known := commands().get(command)) is None:
        raise unknown_name("", "command", command, commands())
    if "-h" in arguments or "--help" in arguments:
        return _print(help_of(command))
    if "RANK" not in os.environ and "SLURM_STEP_ID" not in os.environ:  # else every rank would show it
        console.begin_activity(f"hydrant {command}")
    if known.runs_own_code:
        _allow_own_code(arguments)
    with paused_gc():
        from hydrant.runs.log_setup import preserve_loggers

        function = pkgutil.resolve_name(known.function)
    with preserve_loggers():
        status = function(list(arguments))
    return status if known.writes else status or console.answer_status()


def _print(text: str) -> int:
    print(text)
    return console.output_status()


def _check_working_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        message = "the working folder has been removed"
        raise ConfigError("", message, remedy="change to another one") from error


def _allow_own_code(words: Sequence[str]) -> None:
    """Let Python find the user's own parts, if the user allows to run code of the working folder."""
    from hydrant.safety.trust import allows_own_code, import_from_working_folder

    if allows_own_code(words):
        import_from_working_folder()


def _report(error: HydrantError) -> int:
    return console.say_error(str(error), error.exit_status, error.key, error.advice)


def _complete(arguments: list[str]) -> int:
    """Complete the last word of the line for a shell, or print what installs this in a shell."""
    from hydrant.commands.completion import SCRIPTS, completions, script_of

    if scripts := [word for word in arguments if word in SCRIPTS]:
        return _print(script_of(scripts[0]))
    if (line := os.environ.get("COMP_LINE")) is None:
        raise ConfigError("", f"-sc needs one of {', '.join(SCRIPTS)}", about="-sc")
    words = line.split(" ")
    command = arguments[0] if arguments[0] in commands() else "".join(words[1:2])  # train.py passes it itself
    matches = completions(words[2:]) if len(words) > 2 else list(commands())
    if words[-1].startswith("-") and command in commands():
        matches = flags_of(command)
    return _print("\n".join(match for match in matches if match.startswith(words[-1])))
