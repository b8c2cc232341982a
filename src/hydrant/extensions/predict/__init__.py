"""`hydrant predict`: what a run predicts for files, tensors or a split."""

from typing import TYPE_CHECKING

from hydrant.commands.registry import SAVED_RUN, Command
from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.predict.command import predict as predict
    from hydrant.extensions.predict.prediction import Predictions as Predictions

__getattr__, __dir__ = lazy_exports(__name__)

COMMAND = Command("predict", "write what a run predicts for files, tensors or a split", section="Use",
                  groups=SAVED_RUN)  # fmt: skip
