"""Tasks: a model with its losses and measurements in one module."""

from hydrant.tasks.base import Task
from hydrant.tasks.classification import Classification
from hydrant.tasks.distillation import Distillation
from hydrant.tasks.language_modeling import LanguageModeling
from hydrant.tasks.supervised import R2, Regression, Supervised, TwoModels

__all__ = [
    "R2",
    "Classification",
    "Distillation",
    "LanguageModeling",
    "Regression",
    "Supervised",
    "Task",
    "TwoModels",
]
