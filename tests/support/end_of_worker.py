"""The end of a test process. Imported before what registers functions for it, so that this one comes last."""

import atexit
import gc
import os

worker_id = -1
"""The process of a worker of pytest-xdist."""


@atexit.register
def _end() -> None:
    """End a worker without freeing all that it has imported and collected, which takes four seconds.

    Other processes have an exit status, and Triton's bindings report what they do not free. Earlier, pytest's last
    collections would visit it five times.
    """
    if os.getpid() == worker_id:  # and no fork of it
        os._exit(0)
    gc.unfreeze()
