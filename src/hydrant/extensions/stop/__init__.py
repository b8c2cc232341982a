"""`hydrant stop`: asks the processes and the queue that train a run or a sweep to save and end."""

from hydrant.commands.registry import Command

COMMAND = Command("stop", "ask a run or a sweep to save and end", section="Look", writes=True,
                  runs_own_code=False)  # fmt: skip
