"""The tracker that writes to MLflow."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.mlflow.tracker import MlflowTracker as MlflowTracker

__getattr__, __dir__ = lazy_exports(__name__)
