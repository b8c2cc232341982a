"""Call functions in processes that are forked from a server, which has done all slow imports.

`call` starts the server and calls functions. `preload` makes the imports in the server; imported in any other process,
it does nothing.
"""

import sys

PRELOAD_VARIABLE = "_HYDRANT_PRELOAD"
"""The environment variable of the server that lists what it imports."""


def is_fork_server() -> bool:
    """Return whether this process is the fork server or was forked from it."""
    return any("multiprocessing.forkserver" in word for word in sys.orig_argv)
