"""Before the imports: no garbage is collected until they are there, and the server will end without a last look at it.

Else Triton's bindings would tell of all that is frozen. What imported modules do at the end comes before.
"""

import atexit
import gc
import os

from hydrant.server import is_here

if is_here():
    atexit.register(os._exit, 0)
    gc.disable()
