"""Trackers: metrics in Weights & Biases, in TensorBoard, or in the run folder only.

A new tracker needs no entry here: its `_target_` is the path of its class, and the names below are only shorter paths.
Importing this package imports neither W&B nor TensorBoard.
"""

from typing import TYPE_CHECKING

from hydrant.config.lazy_import import lazy_exports

if TYPE_CHECKING:
    from hydrant.trackers.base import NullTracker as NullTracker
    from hydrant.trackers.tensorboard import TensorBoardTracker as TensorBoardTracker
    from hydrant.trackers.wandb import WandbTracker as WandbTracker

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "NullTracker": "hydrant.trackers.base",
        "TensorBoardTracker": "hydrant.trackers.tensorboard",
        "WandbTracker": "hydrant.trackers.wandb",
    },
)
