"""The command line: `hydrant <command> ...`, and one line for what goes wrong."""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hydrant.errors import ConfigError, HydrantError, unknown_name
from hydrant.importing import importing
from hydrant.isolation import Stopped
from hydrant.options import completions
from hydrant.redaction import redacted_text
from hydrant.signals import signal_name

# Resolved when called: a command imports only what it needs.
COMMANDS = {
    "train": ("hydrant.train:main", "train a model, or a sweep of them with --multirun"),
    "preview": ("hydrant.preview:main", "show the schedules, groups and size of a config without training"),
    "evaluate": ("hydrant.evaluate:main", "evaluate a run or a checkpoint"),
    "export": ("hydrant.export:main", "write a run's model as safetensors, torch_export or onnx"),
    "diagnose": ("hydrant.diagnose:main", "explain what torch.compile makes of a config"),
    "bench": ("hydrant.bench:main", "compare precisions and compile settings by speed, memory and result"),
    "status": ("hydrant.status:main", "show how far the runs of a sweep are"),
    "compare": ("hydrant.compare:main", "compare runs and sweeps: groups over seeds, the winner, a page"),
    "agent": ("hydrant.agent:main", "train what a W&B sweep hands out"),
    "sync": ("hydrant.sync:main", "send what W&B runs have kept offline, once"),
    "list": ("hydrant.listing:main", "show what this machine can do"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_process()
    if "-sc" in arguments or "--shell-completion" in arguments:
        return _complete(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0
    command, *rest = arguments
    try:
        if command not in COMMANDS:
            raise _no_command(command)
        if "-h" in rest or "--help" in rest:
            print(help_of(command))
            return 0
        with importing():
            run = pkgutil.resolve_name(COMMANDS[command][0])
        return run(rest)
    except HydrantError as error:
        return _report(error)
    except KeyboardInterrupt:
        print("stopped by SIGINT", file=sys.stderr)
        return 128 + signal.SIGINT
    except Stopped as request:
        print(f"stopped by {signal_name(request.exit_status - 128)}", file=sys.stderr)
        return request.exit_status
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except Exception as error:
        from hydrant.config.messages import HYDRA_ERRORS, explain

        if not isinstance(error, HYDRA_ERRORS):
            raise
        return _report(explain(error))
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough; what Python still holds goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_process() -> None:
    # Read when torch is imported. Threads that spin while they wait make small models ten times slower as soon
    # as the cores have anything else to do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # the user's own targets lie there


def _no_command(word: str) -> ConfigError:
    if "=" in word or word.startswith("-"):
        return ConfigError("", f"{word!r} comes after a command: hydrant train {word}")
    return unknown_name("", "command", word, COMMANDS)


def _report(error: HydrantError) -> int:
    sys.stdout.flush()
    print(
        f"error: {redacted_text(' '.join(str(error).split()))}", file=sys.stderr
    )  # one line, whatever a part said
    return error.exit_status


def _complete(arguments: list[str]) -> int:
    """Answer the shell's Tab: commands, groups and options from file names, which is fast, the rest by Hydra."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    started_as_hydrant = arguments[0] not in COMMANDS  # train.py gives the command itself
    if started_as_hydrant and len(words) == 2:
        print(" ".join(command for command in COMMANDS if command.startswith(words[1])))
        return 0
    if "query=bash" in arguments and len(words) > 2 and (known := completions(words[-1])):
        print("\n".join(known))
        return 0
    if words[1:2] and words[1] in COMMANDS:
        os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])
    flags = arguments if started_as_hydrant else arguments[1:]
    return pkgutil.resolve_name(COMMANDS["train"][0])(flags)


def overview() -> str:
    """What `hydrant --help` prints."""
    commands = "\n".join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items())
    return f"hydrant <command> [overrides]\n\n{commands}\n\nhydrant <command> --help tells more."


def help_of(command: str) -> str:
    """What `hydrant <command> --help` prints: one screen, read from the conf folders."""
    from hydrant.help import TEXTS, groups

    return f"{TEXTS[command].strip()}\n\n{groups()}"
