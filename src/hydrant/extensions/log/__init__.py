"""`hydrant log`: what was asked, and what came out."""

from hydrant.commands.registry import Command

COMMAND = Command("log", "list what was asked and what came out, a line for each run, sweep and study",
                  section="Look", runs_own_code=False)  # fmt: skip
