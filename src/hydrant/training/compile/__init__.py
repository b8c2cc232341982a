"""torch.compile of the task and of the optimizer steps, and the report of what it compiled."""

from hydrant.training.compile.base import FAILURE_REMEDY as FAILURE_REMEDY
from hydrant.training.compile.base import Compilation as Compilation
from hydrant.training.compile.base import Eager as Eager
from hydrant.training.compile.compiled_task import Compile as Compile
from hydrant.training.compile.eager_step import EagerStep as EagerStep
from hydrant.training.compile.eager_step import OptimizerStep as OptimizerStep
from hydrant.training.compile.monitor import CompileReport as CompileReport
from hydrant.training.compile.monitor import Incident as Incident
from hydrant.training.compile.monitor import failure_message as failure_message
from hydrant.training.compile.monitor import parse_frames as parse_frames
