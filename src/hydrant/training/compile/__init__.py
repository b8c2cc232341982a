"""torch.compile of the task and of the optimizer steps, and the report of what it compiled."""

from hydrant.training.compile.base import FAILURE_REMEDY, Compilation, Eager
from hydrant.training.compile.compiled_task import Compile
from hydrant.training.compile.eager_step import EagerStep, OptimizerStep
from hydrant.training.compile.monitor import CompileReport, Incident, failure_message, parse_frames

__all__ = [
    "FAILURE_REMEDY",
    "Compilation",
    "Compile",
    "CompileReport",
    "Eager",
    "EagerStep",
    "Incident",
    "OptimizerStep",
    "failure_message",
    "parse_frames",
]
