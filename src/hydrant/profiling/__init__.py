"""What a run costs: its model, counted, and its updates, profiled. Not to profile is the null profiler."""

from hydrant.profiling.base import NoProfiler, Profiler
from hydrant.profiling.costs import count_flops, count_parameters, peak_flops, peak_memory_gib

__all__ = ["NoProfiler", "Profiler", "count_flops", "count_parameters", "peak_flops", "peak_memory_gib"]
