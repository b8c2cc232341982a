"""Out-of-memory errors and the keys to lower; headroom; and how the C library keeps freed memory."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Generator

import torch

from hydrant.errors import HydrantError, OutOfMemory, first_line

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
