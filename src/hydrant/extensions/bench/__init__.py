"""`hydrant bench`: precisions and compile settings by speed, memory and result."""

from hydrant.commands.registry import ONE_RUN, Command

COMMAND = Command("bench", "compare precisions and compile settings by speed, memory and result",
                  groups=ONE_RUN, writes=True)  # fmt: skip
