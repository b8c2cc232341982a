"""`hydrant init`: a project of one's own, made from the files in `template/`."""

from hydrant.commands.registry import Command

COMMAND = Command("init", "write a project of your own that trains at once", section="Start",
                  runs_own_code=False)  # fmt: skip
