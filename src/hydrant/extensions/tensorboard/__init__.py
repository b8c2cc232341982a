"""The trackers that write for TensorBoard."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.tensorboard.tracker import TensorBoardTracker as TensorBoardTracker

__getattr__, __dir__ = lazy_exports(__name__)
