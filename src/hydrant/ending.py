"""How a run ends, and why it failed: on several ranks, by what failed first."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hydrant.distributed import World
from hydrant.errors import HydrantError, first_line, location, typed_line
from hydrant.job import Job, Result, relative
from hydrant.logs import log, logging_to


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    status: str  # finished, preempted or failed
    exit_status: int
    message: str  # the last line on stderr; "" where all is well
    error: Mapping[str, str] | None  # type, message: why it failed


def unforeseen(error: BaseException, job: Job) -> Result:
    """The end by an error outside of what a run looks after, such as its log."""
    message, file = f"{typed_line(error)} (at {location(error)})", job.folder / "train.log"
    with contextlib.suppress(OSError), logging_to(file):
        log.debug("the run could not be started, or ended", exc_info=error)
        message += f"; {file} has the traceback"
    return Result(1, None, message)


def failure(error: BaseException, folder: Path, world: World) -> Ending:
    """The end by an error; by that of another rank where it came first, for this one may only have lost that rank."""
    place = f"{typed_line(error)} (at {location(error)}); {relative(folder)}/train.log has the traceback"
    if isinstance(error, OSError):  # of the machine, and the log may be what could not be written
        place = typed_line(error)
    message = str(error) if isinstance(error, HydrantError) else place
    described = {"type": type(error).__name__, "message": first_line(error)}
    own = Ending("failed", getattr(error, "exit_status", 1), message, described)
    rank, told = world.first_told(str(folder), json.dumps(dataclasses.asdict(own)))
    first = Ending(**json.loads(told))
    if rank == world.rank or first.message == own.message or first.error is None:
        return own
    told = {"type": first.error["type"], "message": f"rank {rank}: {first.error['message']}"}
    return Ending("failed", first.exit_status, f"rank {rank}: {first.message}", told)
