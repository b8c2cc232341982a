"""Where the jobs of a sweep run, several at once: on this machine, under SLURM, on a Ray cluster.

Each job is a process of its own wherever it runs; an executor only decides where and when.
"""

from hydrant.executors.base import Executor as Executor
from hydrant.executors.base import Work as Work
