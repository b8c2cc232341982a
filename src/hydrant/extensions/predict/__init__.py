"""`hydrant predict`: what a run predicts for files, tensors or a split."""

from hydrant.commands.registry import SAVED_RUN, Command

COMMAND = Command(
    "predict",
    "write what a run predicts for files, tensors or a split",
    main=f"{__name__}.command:main",
    section="Use",
    groups=SAVED_RUN,
)
