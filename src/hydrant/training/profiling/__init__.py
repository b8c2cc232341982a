"""The cost of a run: parameters and FLOPs of the model, time and memory of its updates."""

from hydrant.training.profiling.base import NoProfiler, Phase, Profiler
from hydrant.training.profiling.costs import (
    count_flops,
    count_parameters,
    matmul_rate,
    peak_flops,
    peak_memory_gib,
    synchronize,
)

__all__ = [
    "NoProfiler",
    "Phase",
    "Profiler",
    "count_flops",
    "count_parameters",
    "matmul_rate",
    "peak_flops",
    "peak_memory_gib",
    "synchronize",
]
