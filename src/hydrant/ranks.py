"""What a rank runs that was started on this machine: `python -m hydrant.ranks <folder> <pid of who started it>`."""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
from pathlib import Path

from hydrant.importing import importing
from hydrant.signals import stop_with

with importing():
    from hydrant.distributed import World
    from hydrant.launching import take_job, write_result
    from hydrant.run import execute


def main() -> int:
    """Train; the exit status. The agent takes a rank that stopped by a signal, and saved, for one that is done."""
    faulthandler.enable()
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    rank = World.from_launcher().rank
    try:
        job = take_job(folder, rank)
    except FileNotFoundError:  # who started it has ended meanwhile
        return 1
    stop_with(parent)
    result = execute(job)
    if os.getppid() == parent:
        write_result(folder, rank, result)
    else:  # nobody will read it, nor remove its folder
        shutil.rmtree(folder, ignore_errors=True)
    return int(0 < result.exit_status < 128)


if __name__ == "__main__":
    sys.exit(main())
