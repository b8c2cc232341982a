"""What a run costs: its model, counted, and its updates, profiled. Not to profile is the null profiler."""

from hydrant.profiling.base import NoProfiler, Phase, Profiler
from hydrant.profiling.costs import (
    count_flops,
    count_parameters,
    matmul_rate,
    peak_flops,
    peak_memory_gib,
    synchronise,
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
    "synchronise",
]
