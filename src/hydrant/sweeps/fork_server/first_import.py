"""The fork server's first import: disable the garbage collector, end the server without Python's finalization, and
let torch ask NVML whether there is a GPU.

Written against CPython 3.11. Imports create half a million objects that stay, so collections during the imports cost
time and free nothing; `freeze_gc`, the last import, enables the collector again. Finalization would report every
frozen object of Triton's bindings as a leak; tests/imports/test_without_gc.py looks for such reports.

Packages such as torchao call `torch.cuda.is_available()` when they are imported. Without NVML that initializes CUDA,
and no process that is forked afterwards can use it.
"""

import atexit
import gc
import os

from hydrant.sweeps.fork_server import is_fork_server

if is_fork_server():
    atexit.register(os._exit, 0)  # registered first, so it runs after the handlers of all other modules
    gc.disable()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a forked process has the environment of its call
