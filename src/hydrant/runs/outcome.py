"""How a run ended: `RunResult`, and the line on stderr that reports it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.errors import ConfigError, HydrantError, RankDied, first_line, location, log, typed_line
from hydrant.runs.folder import LOG, RunStatus
from hydrant.runs.log_setup import log_to
from hydrant.terminal.answer import key_of, say_error
from hydrant.terminal.console import notice, relative

if TYPE_CHECKING:
    from hydrant.runs.job import Job
    from hydrant.training.distributed.world import World


_LOST_RANK = re.compile(
    "gloo.*(Connection (closed|reset) by peer|Broken pipe)|remote process exited|Connection was likely closed"
)
"""Messages of gloo, NCCL and torch's store on a rank whose partner has ended."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended. Ranks send it as JSON: `RunResult(**fields)` reads what `to_json` returned."""

    status: RunStatus  # finished, failed, preempted or refused
    exit_status: int
    message: str = ""  # the last line on stderr; "" if there is nothing to report
    value: float | None = None  # the best value of the deciding metric, for sweepers that search
    error: Mapping[str, str] | None = None  # type and message, as in summary.json
    remedy: str = field(default="", compare=False)  # the end of the message; "" if it has none
    exception: BaseException | None = field(default=None, repr=False, compare=False)  # in this process only
    processor_seconds: float = field(default=0.0, compare=False)  # of a sweep's job and its children
    lanes: Mapping[str, RunResult] = field(default_factory=dict[str, "RunResult"], repr=False)
    """The results of all runs by run folder, if the process trained several."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", RunStatus(self.status))  # a plain string in JSON

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "exception": None}  # one of a user's part may not be picklable

    def to_json(self) -> dict[str, Any]:
        """Return the result without its exception as a JSON object."""
        return dataclasses.asdict(dataclasses.replace(self, exception=None))

    @property
    def error_type(self) -> str:
        return (self.error or {}).get("type", "")

    @classmethod
    def finished(cls, value: float | None = None) -> RunResult:
        return cls(RunStatus.FINISHED, 0, value=value)

    @classmethod
    def stopped(cls, signum: int, message: str) -> RunResult:
        """Return the result of a run that a signal stopped."""
        return cls(RunStatus.PREEMPTED, 128 + signum, message)

    @classmethod
    def failed(cls, message: str, error_type: str = "", remedy: str = "") -> RunResult:
        error = {"type": error_type, "message": message} if error_type else None
        return cls(RunStatus.FAILED, 1, message, error=error, remedy=remedy)

    @classmethod
    def from_error(cls, error: BaseException, message: str | None = None) -> RunResult:
        """Return the result of a run that an error ended; `message` replaces the error's own."""
        exit_status = getattr(error, "exit_status", 1)
        status = RunStatus.REFUSED if exit_status == ConfigError.exit_status else RunStatus.FAILED
        described = {"type": type(error).__name__, "message": first_line(error)}
        text = str(error) if message is None else message
        remedy = getattr(error, "remedy", "")
        return cls(status, exit_status, text, error=described, remedy=remedy, exception=error)


def unexpected_failure(error: BaseException, job: Job) -> RunResult:
    """Return the result for an error outside of training, e.g. in the log itself; log its traceback if possible."""
    message, file = f"{typed_line(error)} (at {location(error)})", job.folder / LOG
    with contextlib.suppress(OSError), log_to(file):
        log.debug("the run could not be started, or ended", exc_info=error)
        message += f"; {file} has the traceback"
    return RunResult.from_error(_or_rank_died(error), message)


def first_failure(error: BaseException, folder: Path, world: World) -> RunResult:
    """Return the result of the first rank that failed, because the others may only have lost that rank."""
    error = _or_rank_died(error)
    match error:
        case HydrantError():
            message = str(error)
        case OSError():  # the machine is at fault, and the log may be the file that cannot be written
            message = typed_line(error)
        case _:
            log_file = f"{relative(folder)}/{LOG}"
            message = f"{typed_line(error)} (at {location(error)}); {log_file} has the traceback"
    here = RunResult.from_error(error, message)
    rank, text = world.first_report(str(folder), json.dumps(here.to_json()))
    first = RunResult(**json.loads(text))
    if rank == world.rank or first.message == here.message or first.error is None:
        return here
    described = {"type": first.error["type"], "message": f"rank {rank}: {first.error['message']}"}
    return dataclasses.replace(first, message=f"rank {rank}: {first.message}", error=described)


def _or_rank_died(error: BaseException) -> BaseException:
    """Return an error, or `RankDied` if it says that another rank has ended."""
    if not _LOST_RANK.search(str(error)):
        return error
    return RankDied("another rank has ended; the launcher, or the output of that rank, says why")


def report(result: RunResult) -> int:
    """Print on stderr what went wrong, if anything, and return the exit status."""
    if result.message:
        say_error(result.message, result.exit_status, key_of(result.exception), result.remedy)
    return result.exit_status


def report_part(result: RunResult, label: str) -> None:
    """Print on stderr what went wrong in a part of what this command does, such as a job of a sweep, which goes on."""
    if result.message:
        sys.stdout.flush()
        kind = "" if result.exit_status > 128 else "error: "
        notice(f"{label}: {kind}{' '.join(result.message.split())}")
