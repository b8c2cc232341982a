"""Call functions in processes that are forked from a server, which has done all slow imports.

`call` starts the server and calls functions. The server imports this module, which imports the paths in its environment
variable before the first fork. In any other process, the module does nothing.

Written against CPython 3.11. Imports create half a million objects that stay, so collections meanwhile cost time and
free nothing. Later ones would write to the header of every object, and so copy every memory page that a forked process
shares with the server. So all objects are excluded. Python's finalization would report every excluded object of
Triton's bindings as a leak, so the server ends without it; tests/test_paused_gc.py looks for such reports.

Packages such as torchao call `torch.cuda.is_available()` when they are imported. Without NVML that initializes CUDA,
and no process that is forked afterwards can use it.
"""

import atexit
import gc
import json
import os
import sys

PRELOAD_VARIABLE = "_HYDRANT_PRELOAD"
"""The environment variable of the server that lists what it imports."""


def is_fork_server() -> bool:
    """Return whether this process is the fork server or was forked from it."""
    return any("multiprocessing.forkserver" in word for word in sys.orig_argv)


if is_fork_server() and (_paths := os.environ.pop(PRELOAD_VARIABLE, "")):
    atexit.register(os._exit, 0)  # registered first, so it runs after the handlers of all other modules
    gc.disable()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a forked process has the environment of its call
    from hydrant.safety.targets import preload

    for path in json.loads(_paths):
        preload(path)
    gc.freeze()
    gc.enable()
