"""The profiler of torch, over some updates of a run."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.profiling.trace import TorchProfiler as TorchProfiler

__getattr__, __dir__ = lazy_exports(__name__)
