"""What becomes of memory on the host that is freed. Brings in no torch."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of the GNU C library


def keep_freed_memory() -> None:
    """Let this process keep memory that it frees for what it allocates next, as torch's allocator does on CUDA.

    The GNU C library returns large pieces to the system when they are freed. Activations are: each update would ask
    for them again, and wait until the kernel has filled every page with zeros (mallopt(3)). Where the environment
    says something of it (`MALLOC_...`, `GLIBC_TUNABLES`), that holds; with another C library nothing happens.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)  # nothing is mapped on its own, to be unmapped when it is freed
        library.mallopt(_M_TRIM_THRESHOLD, -1)  # and the heap does not shrink
