"""What becomes of memory on the host that is freed. Brings in no torch."""

from __future__ import annotations

import ctypes
import os

_RULING = {"MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_"}
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of the GNU C library


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees for what it allocates next, as torch's allocator does on CUDA.

    The GNU C library returns large pieces to the system when they are freed. Activations are: each update would ask
    for them again, and wait until the kernel has filled every page with zeros (mallopt(3)). Processes that are forked,
    as data workers are, do alike. Where the environment rules it, that holds; with another C library nothing happens.
    """
    if _RULING & os.environ.keys() or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)  # large pieces lie in the heap, too
        library.mallopt(_M_TRIM_THRESHOLD, -1)  # and the heap does not shrink
