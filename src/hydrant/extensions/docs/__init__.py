"""`hydrant docs`: pages of the documentation."""

from hydrant.commands.registry import Command

COMMAND = Command("docs", "print pages of the documentation", runs_own_code=False)
