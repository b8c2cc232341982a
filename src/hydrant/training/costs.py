"""Parameters and FLOPs of a model; speed, peak FLOP/s and memory of a device.

Out-of-memory errors and the keys to lower; headroom; and how the C library keeps freed memory.
"""

import contextlib
import ctypes
import gc
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from hydrant.batch import Batch
from hydrant.errors import HydrantError, OutOfMemory, first_line, typed_line
from hydrant.training.distributed.ddp import CallRecorder, Collective

T = TypeVar("T")

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


_aten: Any = torch.ops.aten


class Flops(NamedTuple):
    """The FLOPs of a sample's forward pass."""

    per_sample: int
    uncounted: str  # why they cannot be counted, for users; "" if they are
    collectives: Sequence[Collective]  # that the pass calls
    derivative: str  # `CallRecorder.derivative`


def count_flops(batch: Batch, forward: Callable[[Batch], T]) -> tuple[Flops, T]:
    """Return the FLOPs of one sample's forward pass, and what it returns. If they cannot be counted, they are 0.

    torch's `FlopCounterMode` counts matrix products, convolutions and attention; a multiply-add is two FLOPs.

    Operations that torch does not count, such as `nn.Bilinear`, are left out.

    Args:
        batch: the samples.
        forward: calls the task in training mode.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, which only a started run needs

    counter: Any = FlopCounterMode(display=False, custom_mapping={_aten.mkldnn_rnn_layer: _rnn_layer_flops})
    counter.mod_tracker = _NoModules()
    recorder = CallRecorder()
    try:
        with _unfused_attention(), recorder, counter:
            output = forward(batch)
        per_sample, uncounted = counter.get_total_flops() // batch.num_samples, ""
    except Exception as error:  # of the model, or of the way in which its operations are counted
        output = forward(batch)
        per_sample, uncounted = 0, f"flops_per_sample is 0: torch cannot count them ({typed_line(error)})"
    return Flops(per_sample, uncounted, recorder.collectives, recorder.derivative), output


class _NoModules(contextlib.nullcontext[None]):
    """Counts for no single module: torch's own tracker does not allow derivatives in a forward pass."""

    parents = ("Global",)


def _rnn_layer_flops(inputs: Sequence[int], *weights: Any, **_: Any) -> int:
    """Return the FLOPs of oneDNN's LSTM layer: each of two matrices multiplies each input, (length, batch, size)."""
    return 2 * math.prod(inputs[:-1]) * sum(math.prod(matrix) for matrix in weights[:2])


@contextlib.contextmanager
def _unfused_attention() -> Generator[None]:
    """Keep torch's attention layers from their inference kernel, which a frozen part could use: it is not counted."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


TRAINING_REMEDY = (
    "Lower micro_batch_size (micro_batch_size=auto finds the largest that fits; an update keeps its "
    "global_batch_size samples), or try precision=bf16, compile=default or a smaller model"
)
EVALUATION_REMEDY = "Lower eval_batch_size"

_MESSAGES = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # what cuBLAS says if its handle does not fit
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one in its chain of causes, means that memory is full."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


def allocator_message(error: BaseException | None) -> str:
    """Return the first two sentences of an allocator's message, without the advice that follows them."""
    return ". ".join(first_line(error or MemoryError()).split(". ")[:2]).rstrip(".")


@contextlib.contextmanager
def explain_out_of_memory(remedy: str) -> Generator[None]:
    """Turn an out-of-memory error raised in this context into one that ends with `remedy`.

    Raises:
        OutOfMemory: the allocator's message and the remedy, which names the keys to lower.
    """
    try:
        yield
    except HydrantError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(allocator_message(error), remedy=remedy) from error


def release_memory() -> None:
    """Give unused memory back, and forget the peak of CUDA's."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


_HEADROOM = 0.09
"""The part of a CUDA device's free memory that is kept free."""


@contextlib.contextmanager
def leave_headroom(device: torch.device) -> Generator[None]:
    """Let this process run out of memory in this context before a CUDA device is full.

    A run needs more memory than the trial, which makes eager updates on one rank: buffers of DDP and NCCL, compiled
    code, a workspace of cuDNN.
    """
    if device.type != "cuda":
        yield
        return
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    before = torch.cuda.get_per_process_memory_fraction(device)
    available = (free + torch.cuda.memory_reserved(device)) / total
    torch.cuda.set_per_process_memory_fraction(min(before, (1 - _HEADROOM) * available), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of the GNU C library


def keep_freed_memory() -> None:
    """Keep freed memory in this process for later allocations, as torch's CUDA allocator does.

    The GNU C library returns large blocks to the system when they are freed. Activations are such blocks: every update
    would allocate them again and wait until the kernel has filled every page with zeros (mallopt(3)). Forked processes,
    such as data workers, inherit the setting. Environment variables that tune malloc take precedence; with another C
    library this does nothing.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)  # allocate large blocks on the heap, too
        library.mallopt(_M_TRIM_THRESHOLD, -1)  # and never shrink the heap
