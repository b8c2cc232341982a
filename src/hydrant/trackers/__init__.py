"""Trackers: metrics in Weights & Biases, TensorBoard, MLflow or Trackio, or in the run folder only.

A new tracker needs no entry here: its `_target_` is the path of its class, and the names below are only shorter paths.
Importing this package imports none of their libraries.
"""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.trackers.base import NullTracker as NullTracker

__getattr__, __dir__ = lazy_exports(__name__)
