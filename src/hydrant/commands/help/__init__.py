"""The help screens. The options are read from the conf folders, so they include a user's own options."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from hydrant.commands.registry import COMMANDS

_WIDTH = 110


def overview() -> str:
    """Return what `hydrant --help` prints."""
    commands = "\n".join(f"  {command.name:<10} {command.summary}" for command in COMMANDS.values())
    more = "--help explains a command.\nhydrant --version prints the version and the commit."
    return f"hydrant <command> [overrides]\n\n{commands}\n\nhydrant <command> {more}"


def help_of(command: str) -> str:
    """Return what `hydrant <command> --help` prints: one screen."""
    text = Path(__file__).with_name(f"{command}.txt").read_text(encoding="utf-8").rstrip("\n")
    return text.replace("{train}", _train_command()) + _groups(command)


def _train_command() -> str:
    """Return the command that trains, as it was called: a script such as train.py, or `hydrant train`."""
    program = Path(sys.argv[0]).name
    return f"python {program}" if program.endswith(".py") else "hydrant train"


def _groups(command: str) -> str:
    """Return the config groups that a command reads, with their options; "" for a command that reads none."""
    from hydrant.config.groups import group_options

    pattern = COMMANDS[command].groups
    options = {group: names for group, names in group_options().items() if re.fullmatch(pattern, group)}
    if not options:
        return ""
    width = max(map(len, options))
    entries = [
        textwrap.fill(
            ", ".join(names),
            width=_WIDTH,
            initial_indent=f"  {group:<{width}}  ",
            subsequent_indent=" " * (width + 4),
            break_on_hyphens=False,
        )
        for group, names in options.items()
    ]
    return "\n".join(["\n\nGroups and their options:", *entries])
