"""Parameters of a model; memory, speed and peak FLOP/s of a device."""

from __future__ import annotations

import re
import statistics
import time

import torch
from torch import nn

_PEAK_TFLOPS = {
    "GB200": 2500, "B200": 2250, "GH200": 989, "H200": 989, "H200 NVL": 835, "H100": 989, "H100 NVL": 835,
    "H100 PCIe": 756, "H800": 989, "H800 PCIe": 756, "H20": 148, "A100": 312, "A800": 312, "A40": 150, "A30": 165,
    "A10": 125, "A10G": 70, "L40S": 362, "L40": 181, "L4": 121, "V100": 125, "V100-PCIE": 112, "T4": 65,
}  # fmt: skip
"""Peaks of the tensor cores in bf16 or fp16, dense (without sparsity), in TFLOP/s, from NVIDIA's data sheets."""


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of all parameters and of the trainable ones."""
    parameters = list(module.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


def peak_flops(device: torch.device) -> float | None:
    """Return the device's dense half-precision peak in FLOP/s by its data sheet, or None if it is unknown."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    if re.search(r"\bMIG\b", name):  # a slice of a GPU, with a part of its peak
        return None
    longest_first = sorted(_PEAK_TFLOPS, key=len, reverse=True)
    model = next((model for model in longest_first if re.search(rf"\b{model}\b", name)), None)
    return None if model is None else _PEAK_TFLOPS[model] * 1e12


def peak_memory_gib(device: torch.device) -> float | None:
    """Return the peak memory of tensors on the device so far, in GiB, or None on a CPU, where it is not counted."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def reset_peak_memory(device: torch.device) -> None:
    """Count the peak memory of tensors on the device from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Time a large square matrix product on this device and return its FLOP/s: the median of five."""
    size = 8192 if device.type == "cuda" else 1024
    # Random numbers, because a product of constants draws less power and runs faster.
    matrix = torch.randn(size, size, device=device).to(dtype)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[1:])


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
