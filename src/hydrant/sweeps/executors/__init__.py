"""Where the jobs of a sweep run: one after another, several at once on this machine, under SLURM, on a Ray cluster.

An executor decides where and when a job starts. Each job runs in a process of its own.
"""

from hydrant.extensions.slurm.executor import cancel as cancel
