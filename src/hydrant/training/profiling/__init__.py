"""The cost of a run: parameters and FLOPs of the model, time and memory of its updates."""

from hydrant.training.profiling.base import NoProfiler as NoProfiler
from hydrant.training.profiling.base import Phase as Phase
from hydrant.training.profiling.base import Profiler as Profiler
from hydrant.training.profiling.costs import Flops as Flops
from hydrant.training.profiling.costs import count_flops as count_flops
from hydrant.training.profiling.costs import count_parameters as count_parameters
from hydrant.training.profiling.costs import matmul_rate as matmul_rate
from hydrant.training.profiling.costs import peak_flops as peak_flops
from hydrant.training.profiling.costs import peak_memory_gib as peak_memory_gib
from hydrant.training.profiling.costs import reset_peak_memory as reset_peak_memory
from hydrant.training.profiling.costs import synchronize as synchronize
