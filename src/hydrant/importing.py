"""Importing without the garbage collector. Brings in no torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Generator


@contextlib.contextmanager
def importing() -> Generator[None]:
    """While it lasts, no garbage is collected; once modules came in, what is there is never looked at again.

    For modules of ours and of torch, before a run has anything that is to be freed, such as its model.

    torch brings in some half a million objects that stay. To look through them again and again while more come is a
    fifth of the time that importing takes, and to do so at the end of the process most of the time until it is gone.
    What comes in with Triton is looked at: its bindings tell of all that the end of the process finds not freed.
    """
    num_modules, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules and "triton" not in sys.modules:
            gc.freeze()
        if was_enabled:
            gc.enable()
