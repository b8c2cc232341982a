"""`diagnose`: what torch.compile makes of a config; where it breaks the graph, fails, or computes something else."""

from hydrant.diagnose.command import main

__all__ = ["main"]
