"""Several runs of the same program as one: their weights are stacked, and torch maps each update over the lanes."""

from hydrant.training.stack.lanes import CannotStack as CannotStack
from hydrant.training.stack.stack import Stack as Stack
