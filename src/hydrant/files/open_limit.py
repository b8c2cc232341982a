"""How many files this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_limit() -> int:
    """Let this process open as many files as the system allows, and return how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20
