"""`hydrant diagnose`: what torch.compile does with a config."""

from hydrant.commands.registry import ONE_RUN, Command

COMMAND = Command("diagnose", "explain what torch.compile does with a config", groups=ONE_RUN)
