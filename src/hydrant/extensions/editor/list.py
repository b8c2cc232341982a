"""`list groups`: list the config groups with their options."""

from collections.abc import Mapping, Sequence

from hydrant.commands.registry import page
from hydrant.config.command_line import Flags
from hydrant.config.groups import group_options
from hydrant.errors import check_known
from hydrant.records.answers import Answer
from hydrant.terminal.console import emit, tell


class List(Answer):
    """The config groups.

    Attributes:
        groups: The options of each.
    """

    groups: Mapping[str, Sequence[str]]


def main(arguments: Sequence[str]) -> int:
    """Print the list and return the exit status."""
    _, words = Flags("list").split(arguments)
    check_known("", "list", " ".join(words) or "groups", ["groups"])
    groups = group_options()
    rows = (f"  {name}  {', '.join(options)}" for name, options in groups.items())
    tell(page("\n".join(rows)), List(groups), emit)
    return 0
