"""What a rank runs that was started on this machine: `python -m hydrant.ranks <folder> <pid of who started it>`."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from hydrant.distributed import World
from hydrant.launching import forget_result, read_job, tell_agent, write_result
from hydrant.run import execute
from hydrant.signals import stop_with


def main() -> int:
    """Train; the exit status. The agent takes a rank that stopped by a signal, and saved, for one that is done."""
    faulthandler.enable()
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    stop_with(parent)
    is_rank_zero = World.from_launcher().is_rank_zero
    if is_rank_zero:
        forget_result(folder)
    result = execute(read_job(folder))
    if is_rank_zero:
        write_result(folder, result)
    if result.exit_status == 1:
        tell_agent(result.message)
    return int(result.exit_status == 1)


if __name__ == "__main__":
    sys.exit(main())
