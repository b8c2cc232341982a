"""A GPU made of host memory: torch's CUDA build sees an H100, and the CPU computes what its kernels would.

docs/internals/cuda-stub.md says what it shows, what only a GPU can show, and how to run a command on it.
"""

from gpu.recording import Call, Calls, calls

__all__ = ["Call", "Calls", "calls"]
