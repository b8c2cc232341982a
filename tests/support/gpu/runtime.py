"""What Python does in place of CUDA, through the functions of the stub's library."""

import ctypes
import itertools
import os
from collections.abc import Callable

import torch

from gpu.library import library

_ANY_DIRECTION = 4  # cudaMemcpyDefault


def current_stream(device: torch.device) -> int:
    """Return the handle of the stream that gets this thread's work for a GPU."""
    return torch._C._cuda_getCurrentRawStream(device.index)


def note(kind: str, detail: str, device: torch.device) -> None:
    """Record a call that Python makes in place of CUDA."""
    library().gpu_stub_note(kind.encode(), detail.encode(), current_stream(device))


def copy_bytes(to: int, source: int, num_bytes: int, device: torch.device) -> None:
    """Copy memory of the host or of a GPU, as cudaMemcpyAsync."""
    _check(library().cudaMemcpyAsync(to, source, num_bytes, _ANY_DIRECTION, current_stream(device)))


def wait(device: torch.device) -> None:
    """Wait for the current stream, as cudaStreamSynchronize."""
    _check(library().cudaStreamSynchronize(current_stream(device)))


def is_deferred() -> bool:
    """Return whether work waits in its stream until something waits for it: the level "time"."""
    return os.environ["GPU_STUB_LEVEL"] == "time"


def enqueue(work: Callable[[], object], device: torch.device) -> None:
    """Give work to the current stream of a GPU.

    Raises:
        RuntimeError: work that was given earlier has failed.
    """
    if _failures:
        raise RuntimeError("CUDA error: work that was given to a stream has failed") from _failures[0]
    number = next(_numbers)
    _given[number] = work
    _check(library().gpu_stub_enqueue(current_stream(device), _DO, number))


def finish(device: torch.device) -> None:
    """Let the work of the current stream be done, without a wait of the host in the record."""
    library().gpu_stub_finish(current_stream(device))


_numbers = itertools.count(1)
_given: dict[int, Callable[[], object]] = {}
_failures: list[Exception] = []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _DO(number: int) -> None:  # noqa: N802
    try:
        _given.pop(number)()
    except Exception as error:
        _failures.append(error)


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"CUDA error: {torch.cuda.cudart().cudaGetErrorString(error)}")
