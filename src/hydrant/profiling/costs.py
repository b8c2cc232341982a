"""What a model costs: parameters, floating point operations, and the device's peak."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from hydrant.batch import Batch, Outcome

# Dense bf16/fp16 tensor-core peaks in FLOP/s, from NVIDIA's data sheets (without sparsity).
_PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A10G": 70e12, "V100": 125e12}


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """(all, trainable) parameters."""
    parameters = list(module.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


def count_flops(task: nn.Module, batch: Batch) -> tuple[int, Outcome]:
    """FLOPs of one sample's forward pass in evaluation mode, and what it gave; a multiply-add is two.

    Matrix products, convolutions and attention, as torch's `FlopCounterMode` counts them; training is about
    three times this (Kaplan et al., 2020, section 2.1).
    """
    from torch.utils.flop_counter import FlopCounterMode  # brings in Triton, and only starting a run counts

    was_training = task.training
    task.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outcome: Outcome = task.forward(batch)
    task.train(was_training)
    return counter.get_total_flops() // len(batch.targets), outcome


def peak_flops(device: torch.device) -> float | None:
    """The device's dense half-precision peak in FLOP/s, `None` where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops for model, flops in _PEAK_FLOPS.items() if model in name), None)


def peak_memory_gib(device: torch.device) -> float | None:
    """The most device memory that tensors took so far, in GiB; `None` where the device does not count it."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large square matrix product on this device: the median of a few, which is timed here and now."""
    size = 8192 if device.type == "cuda" else 1024
    matrix = torch.randn(size, size, device=device).to(
        dtype
    )  # constants would draw less power, and run faster
    seconds: list[float] = []
    for _ in range(6):
        synchronise(device)
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        synchronise(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds[1:])


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
