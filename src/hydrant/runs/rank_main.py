"""The program of a rank that Hydrant starts: `python -m hydrant.runs.rank_main <folder> <pid of the launcher>`."""

import faulthandler
import os
import shutil
import signal
import sys
from pathlib import Path

from hydrant.imports import paused_gc
from hydrant.safety.trust import import_from_working_folder
from hydrant.signals import stop_when_orphaned

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of a rank that is stopped while it starts
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

with paused_gc():
    from hydrant.runs.execute import execute
    from hydrant.runs.ranks import take_job, write_result
    from hydrant.terminal.console import begin_activity, standard_streams
    from hydrant.training.distributed.world import World, end_process


def main() -> int:
    """Train and return the exit status: 1 for an error, else 0.

    A stop by a signal is 0 too, because the launching process takes any other status for a failure.
    """
    faulthandler.enable()
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    rank = World.from_launcher().rank
    stop_when_orphaned(parent)  # also while it waits for its job
    if rank == 0 and sys.stdout.isatty():  # else other jobs may run beside this one
        begin_activity("hydrant train")
    if (job := take_job()) is None:
        return 1
    if job.config["allow_targets"]:
        import_from_working_folder()
    result = execute(job)
    if os.getppid() == parent:
        write_result(folder, rank, result)
    else:  # the launching process has ended, so nobody else removes the folder
        shutil.rmtree(folder, ignore_errors=True)
    return int(0 < result.exit_status < 128)


if __name__ == "__main__":
    with standard_streams():
        end_process(main())
