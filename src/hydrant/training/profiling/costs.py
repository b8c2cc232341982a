"""Parameters and FLOPs of a model; memory, speed and peak FLOP/s of a device."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from hydrant.batch import Batch, Outcome

# Dense bf16/fp16 tensor-core peaks in FLOP/s, from NVIDIA's data sheets (without sparsity).
_PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A10G": 70e12, "V100": 125e12}


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of all parameters and of the trainable ones."""
    parameters = list(module.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


def count_flops(task: nn.Module, batch: Batch) -> tuple[int, Outcome]:
    """Return the FLOPs of one sample's forward pass in evaluation mode, and the outcome of the batch.

    torch's `FlopCounterMode` counts matrix products, convolutions and attention; a multiply-add is two FLOPs.
    Training takes about three times as many (Kaplan et al., 2020, section 2.1).
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which only a started run needs

    was_training = task.training
    task.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outcome: Outcome = task.forward(batch)
    task.train(was_training)
    return counter.get_total_flops() // len(batch.targets), outcome


def peak_flops(device: torch.device) -> float | None:
    """Return the device's dense half-precision peak in FLOP/s by its data sheet, or None if it is unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for model, flops in _PEAK_FLOPS.items() if model in name), None)


def peak_memory_gib(device: torch.device) -> float | None:
    """Return the peak memory of tensors on the device so far, in GiB, or None on a CPU, where it is not counted."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Time a large square matrix product on this device and return its FLOP/s: the median of five."""
    size = 8192 if device.type == "cuda" else 1024
    # Random numbers, because a product of constants draws less power and runs faster.
    matrix = torch.randn(size, size, device=device).to(dtype)
    seconds: list[float] = []
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[1:])


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
