"""Tasks: a model with its losses and measurements in one module."""

from hydrant.tasks.base import R2 as R2
from hydrant.tasks.base import Regression as Regression
from hydrant.tasks.base import Supervised as Supervised
from hydrant.tasks.base import Task as Task
from hydrant.tasks.classification import Classification as Classification
