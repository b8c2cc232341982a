"""torch.compile of a task and of the update, and the account of what it did. Eager is the null compilation."""

from hydrant.compilation.task import Compilation, Compile, CompileReport, Eager
from hydrant.compilation.update import EagerUpdate, Step

__all__ = ["Compilation", "Compile", "CompileReport", "Eager", "EagerUpdate", "Step"]
