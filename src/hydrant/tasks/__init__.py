"""Tasks: a model with its losses and measurements in one module."""

from hydrant.tasks.base import Task as Task
from hydrant.tasks.classification import Classification as Classification
from hydrant.tasks.supervised import R2 as R2
from hydrant.tasks.supervised import Regression as Regression
from hydrant.tasks.supervised import Supervised as Supervised
