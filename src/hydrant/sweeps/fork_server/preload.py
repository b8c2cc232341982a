"""What the fork server does before it forks: the imports of the paths in its environment variable.

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

from hydrant.sweeps.fork_server import PRELOAD_VARIABLE, is_fork_server

if is_fork_server():
    atexit.register(os._exit, 0)  # registered first, so it runs after the handlers of all other modules
    gc.disable()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a forked process has the environment of its call
    from hydrant.safety.targets import preload

    for path in json.loads(os.environ.pop(PRELOAD_VARIABLE, "[]")):
        preload(path)
    gc.freeze()
    gc.enable()
