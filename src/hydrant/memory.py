"""Out of memory: how it shows, and which keys to lower."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

from hydrant.errors import HydrantError, OutOfMemory, first_line

TRAINING = (
    "Lower micro_batch_size (micro_batch_size=auto finds the largest that fits; an update keeps its "
    "global_batch_size samples), or try precision=bf16, compile=default or a smaller model"
)
EVALUATION = "Lower eval_batch_size"

_WORDS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: can't allocate memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, says that memory is full."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def said(error: BaseException | None) -> str:
    """What an allocator says of it; its advice, which follows, is left out."""
    return ". ".join(first_line(error or MemoryError()).split(". ")[:2]).rstrip(".")


@contextlib.contextmanager
def memory_told(remedy: str) -> Generator[None]:
    """Turn running out of memory in here into an error that says what to lower.

    Raises:
        OutOfMemory: names the keys.
    """
    try:
        yield
    except HydrantError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"{said(error)}. {remedy}") from error
