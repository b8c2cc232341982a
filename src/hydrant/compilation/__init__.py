"""torch.compile of a task and of the update, and the account of what it did. Eager is the null compilation."""

from hydrant.compilation.task import Compilation, Compile, CompileReport, Eager

__all__ = ["Compilation", "Compile", "CompileReport", "Eager"]
