"""torch.compile of a task and of the update, and the account of what it did. Eager is the null compilation."""

from hydrant.compilation.base import Compilation, Eager
from hydrant.compilation.step import EagerUpdate, Step
from hydrant.compilation.task import Compile
from hydrant.compilation.watch import CompileReport, Incident, frames_of, user_line

__all__ = [
    "Compilation",
    "Compile",
    "CompileReport",
    "Eager",
    "EagerUpdate",
    "Incident",
    "Step",
    "frames_of",
    "user_line",
]
