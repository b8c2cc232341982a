"""Tasks: a model together with its losses and measurements, as one module."""

from hydrant.tasks.base import Task
from hydrant.tasks.classification import Classification

__all__ = ["Classification", "Task"]
