"""Import modules with the garbage collector paused. This module does not import torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Generator


@contextlib.contextmanager
def import_without_gc() -> Generator[None]:
    """Pause the garbage collector during imports, then exclude all existing objects from later collections.

    Use it only for imports of Hydrant's and libraries' modules, before the run creates objects that must be freed,
    such as its model.

    Importing torch creates about half a million objects that live as long as the process. Scanning them repeatedly
    during the import takes a fifth of the import time; scanning them again at exit takes most of the exit time.
    After Triton is imported, the objects stay in the collector, because Triton's bindings report every object
    that is not freed at exit.
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
