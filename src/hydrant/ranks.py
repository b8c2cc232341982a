"""What a rank runs that was started on this machine: `python -m hydrant.ranks <folder>`."""

from __future__ import annotations

import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from hydrant.distributed import World
from hydrant.launching import read_job, write_result
from hydrant.run import execute


class RankFailed(Exception):
    """What a rank tells the agent, which stops the others then."""


@record
def main() -> None:
    """Train. The agent takes a rank that stopped by a signal, and saved, for one that is done."""
    folder = Path(sys.argv[1])
    result = execute(read_job(folder))
    if World.from_launcher().is_rank_zero:
        write_result(folder, result)
    if result.exit_status == 1:
        raise RankFailed(result.message)


if __name__ == "__main__":
    main()
