"""What the server of `hydrant.isolation` imports before and after all else. In any other process these do nothing."""

import sys


def is_here() -> bool:
    """Whether this process is such a server, or was forked from one."""
    return any("multiprocessing.forkserver" in word for word in sys.orig_argv)
