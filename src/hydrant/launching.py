"""Start the ranks of a job on this machine, by torch's own elastic agent, and tell what became of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

from hydrant.errors import RankHung
from hydrant.job import Job, Result
from hydrant.launchers import is_started_as_rank
from hydrant.runs import mark_failed, read_run
from hydrant.signals import GRACE_SECONDS, STOPPING

_MODULE = "hydrant.ranks"
_FOLDER = "hydrant-ranks-"
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
"""What a rank says that lost another one."""


def starts_ranks(job: Job) -> bool:
    """Whether a job asks for several ranks that no launcher has started."""
    settings = job.config["parallel"]
    is_for_several = "max_restarts" in settings  # an option for one process refuses more itself
    return settings["num_processes"] > 1 and is_for_several and not is_started_as_rank()


def is_started_here() -> bool:
    """Whether this process is a rank that `launch` started."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(_FOLDER)


def launch(job: Job) -> Result:
    """Run a job on ranks of their own, to its end; the signals of `STOPPING` are passed on."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    with tempfile.TemporaryDirectory(prefix=_FOLDER) as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(_plain(job)), encoding="utf-8")
        began = time.time()
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what it tells, we tell
        try:
            with _hearing_one_signal():
                agent = elastic_launch(_settings(job, folder), sys.executable)
                agent("-m", _MODULE, str(folder), str(os.getpid()))
        except ChildFailedError as error:
            return _hung(job, began) or _result(folder) or _failed(job, _last_words(error, folder))
        except SignalException as request:
            name = signal.Signals(request.sigval).name
            return _result(folder) or _failed(job, f"stopped by {name} before the ranks could save")
        return _result(folder) or _failed(job, "the ranks ended without a result")


def read_job(folder: Path) -> Job:
    """The job that a rank was started for."""
    told: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    told["folder"] = Path(told["folder"])
    told["sweep_folder"] = None if told["sweep_folder"] is None else Path(told["sweep_folder"])
    return Job(**told)


def forget_result(folder: Path) -> None:
    """The ranks are started again."""
    (folder / "result.json").unlink(missing_ok=True)


def write_result(folder: Path, result: Result) -> None:
    """What rank 0 tells who started it."""
    aside = folder / ".result.json"
    aside.write_text(json.dumps(dataclasses.asdict(result)), encoding="utf-8")
    aside.rename(folder / "result.json")


def tell_agent(message: str) -> None:
    """Why a rank fails, in the file that the agent reads."""
    told = {"message": message, "timestamp": int(time.time())}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(told), encoding="utf-8")


def _plain(job: Job) -> dict[str, Any]:
    told = dataclasses.asdict(job)
    return told | {key: str(told[key]) for key in ("folder", "sweep_folder") if told[key] is not None}


def _settings(job: Job, folder: Path) -> Any:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    count = job.config["parallel"]["num_processes"]
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // count, 1)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(GRACE_SECONDS))
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # the others are ours
    # What other ranks print is kept for when they die; rank 0 speaks for all.
    others = {rank: Std.ALL for rank in range(1, count)}
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=job.config["parallel"].get("max_restarts", 0),  # the ranks refuse one that has none
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=others),
    )


@contextlib.contextmanager
def _hearing_one_signal() -> Generator[None]:
    """The agent passes the first signal on and waits for its ranks; another one meanwhile would orphan them."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    def ask(signum: int, frame: FrameType | None) -> None:
        del frame
        for known in STOPPING:
            signal.signal(known, signal.SIG_IGN)
        raise SignalException(f"got {signum}", sigval=signal.Signals(signum))

    before = {signum: signal.signal(signum, ask) for signum in STOPPING}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _hung(job: Job, began: float) -> Result | None:
    """What the ranks found of one that stands still, before they ended."""
    run = read_run(job.folder)
    is_new = (run.summary.get("error") or {}).get("type") == RankHung.__name__ and run.changed >= began
    return Result(1, None, run.error) if is_new else None


def _result(folder: Path) -> Result | None:
    """What rank 0 says of the run, if it knows more than that it lost another rank."""
    file = folder / "result.json"
    result = Result(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
    return None if result is None or _has_lost_another(result.message) else result


def _failed(job: Job, message: str) -> Result:
    mark_failed(job.folder, message)
    return Result(1, None, message)


def _has_lost_another(message: str) -> bool:
    return any(word in message for word in _LOST)


def _last_words(error: Any, folder: Path) -> str:
    """Which rank failed first, and by what. One that lost it may say so in the same second."""

    def order(rank: int) -> tuple[bool, int]:
        failure = error.failures[rank]
        return _has_lost_another(failure.message), failure.timestamp

    rank = min(error.failures, key=order)
    failure, said = error.failures[rank], _said(folder, rank)
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        return f"rank {rank} was killed by {name}" + (f"; it said last: {said}" if said else "")
    return f"rank {rank}: {failure.message if failure.error_file_data['message'] else said}"


def _said(folder: Path, rank: int) -> str:
    """The last line that a rank wrote to its stderr."""
    files = sorted(folder.glob(f"logs/**/{rank}/stderr.log"))
    lines = files[-1].read_text(encoding="utf-8", errors="replace").split("\n") if files else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
