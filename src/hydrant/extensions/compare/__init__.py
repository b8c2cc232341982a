"""`hydrant compare`: runs side by side, in a table, in groups over seeds, and on a page. Does not import torch."""

from hydrant.commands.registry import Command

COMMAND = Command(
    "compare",
    "compare runs and sweeps: groups over seeds, the winner, a page",
    main=f"{__name__}.command:main",
    answers=(f"{__name__}.answers:Compare",),
    section="Look",
    runs_own_code=False,
)
