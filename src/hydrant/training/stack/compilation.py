"""torch.compile of a stack: one graph for all lanes."""

from __future__ import annotations

import contextlib
from typing import Any

from hydrant.training.compile.base import Compilation
from hydrant.training.compile.monitor import CompileReport


class LaneCompilation(Compilation):
    """The compilation of a run in a stack: its own task stays eager, and the stack compiles all lanes as one.

    Args:
        of_stack: the configured compilation.
    """

    def __init__(self, of_stack: Compilation) -> None:
        self.of_stack = of_stack

    def force_eager(self) -> contextlib.AbstractContextManager[Any]:
        return self.of_stack.force_eager()

    def report(self) -> CompileReport:
        """Return what was compiled for all lanes."""
        return self.of_stack.report()
