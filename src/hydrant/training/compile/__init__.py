"""torch.compile of the task and of the optimizer steps, and the report of what it compiled."""

from hydrant.training.compile.base import Compilation, Eager
from hydrant.training.compile.compiled_task import Compile
from hydrant.training.compile.eager_step import EagerStep, OptimizerStep
from hydrant.training.compile.monitor import CompileReport, Incident, parse_frames, user_line

__all__ = [
    "Compilation",
    "Compile",
    "CompileReport",
    "Eager",
    "EagerStep",
    "Incident",
    "OptimizerStep",
    "parse_frames",
    "user_line",
]
