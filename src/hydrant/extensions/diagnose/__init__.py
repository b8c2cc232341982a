"""`hydrant diagnose`: what torch.compile does with a config."""

from hydrant.commands.registry import ONE_RUN, Command

COMMAND = Command(
    "diagnose",
    "explain what torch.compile does with a config",
    main=f"{__name__}.command:main",
    groups=ONE_RUN,
)
