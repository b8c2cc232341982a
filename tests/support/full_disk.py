"""A disk that is full: files end at a size."""

import contextlib
import sys
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Let this process write no file beyond a size.

    Meanwhile Python saves no compiled module: it does not see that such a file is cut (3.11 to 3.13), and every later
    import of the module would end in `EOFError: marshal data too short`.
    """
    resource = pytest.importorskip("resource")
    limits, writes_none = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = writes_none
