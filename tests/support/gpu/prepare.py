"""Prepare torch, right after its import, for GPUs of the stub."""

import os

import torch


def prepare() -> None:
    """Switch off what the stub has no kernels of; then let the CPU compute, unless only calls are wanted.

    Do nothing in a server, whose forks call this.
    """
    if "GPU_STUB_LEVEL" not in os.environ:
        return
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    if os.environ["GPU_STUB_LEVEL"] in ("values", "time"):
        from gpu import kernels

        kernels.install()
    else:
        _take_zeros_for_finite()


def _take_zeros_for_finite() -> None:
    """Let checks of numbers pass. Kernels compute nothing, and whatever is read is 0."""

    def are_finite(tensor: torch.Tensor) -> torch.Tensor:
        return torch.ones(tensor.shape, dtype=torch.bool)

    torch.Tensor.isfinite = are_finite
    torch.isfinite = are_finite
